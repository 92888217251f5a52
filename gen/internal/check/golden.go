// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// Golden has the layouts that the tests of the generated packages compare with
// Go's. PACKAGE.layout has all of them, for amd64. PACKAGE.ARCH.layout has the
// lines that differ for another architecture, if any.
type Golden struct {
	Dir    string
	API    *api.API
	Home   func(header string) string // returns the package of a header, or "" if the files do not have the header's layouts
	Update bool                       // whether to write the files before comparing them
}

// Check compares the files of arch with the snapshot, and returns a line for
// each file that differs.
func (g *Golden) Check(arch layout.Arch) ([]string, error) {
	texts, err := g.texts(layout.AMD64)
	if err != nil {
		return nil, err
	}
	suffix := ".layout"
	if arch != layout.AMD64 {
		suffix = "." + arch.Name + suffix
		other, err := g.texts(arch)
		if err != nil {
			return nil, err
		}
		for name := range texts {
			texts[name] = changedLines(texts[name], other[name])
		}
	}
	var different []string
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
		path := filepath.Join(g.Dir, name+suffix)
		if g.Update {
			if err := write(path, text); err != nil {
				return nil, err
			}
		}
		have, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if string(have) != text {
			different = append(different, path+" is not what the snapshot says of "+arch.Name+"; check -update rewrites it")
		}
	}
	return different, nil
}

// texts returns the layouts of arch by package: a line for each type, and one
// for each of its members at any depth.
func (g *Golden) texts(arch layout.Arch) (map[string]string, error) {
	texts := map[string]string{}
	a, err := place(g.API, arch)
	if err != nil {
		return nil, err
	}
	var last *api.Struct
	err = eachMember(a, arch, func(s *api.Struct, m member) {
		text := ""
		if s != last {
			text, last = fmt.Sprintf("%s size %d align %d\n", s.Name, s.Size, s.Align), s
		}
		home := g.Home(s.Header)
		if home == "" {
			return
		}
		if m.Bits != nil {
			texts[home] += text + fmt.Sprintf("%s bit %d width %d\n", m.path, m.bit(), m.Bits.Width)
			return
		}
		texts[home] += text + fmt.Sprintf("%s offset %d size %d\n", m.path, m.offset, m.size.Size)
	})
	return texts, err
}

// changedLines returns the lines of other that differ from those of text. Both
// have the same number of lines.
func changedLines(text, other string) string {
	var b strings.Builder
	lines := strings.SplitAfter(text, "\n")
	for i, line := range strings.SplitAfter(other, "\n") {
		if line != lines[i] {
			b.WriteString(line)
		}
	}
	return b.String()
}

// write writes the file, or removes it if the text is empty.
func write(path, text string) error {
	if text != "" {
		return os.WriteFile(path, []byte(text), 0o644)
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
