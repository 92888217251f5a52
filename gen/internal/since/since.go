// SPDX-License-Identifier: Apache-2.0

// Package since reads headers/since.txt. It says, for each name that the oldest
// supported release of rdma-core lacks, which release has added it.
package since

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// Table is the content of a file such as headers/since.txt.
type Table struct {
	path  string
	order []api.Name // names in the order of the file
	lines map[api.Name]line
}

type line struct {
	number  int
	release string
	version api.Version
}

// Load reads the table from a file.
func Load(path string) (*Table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse reads the table. path is the file name in errors.
func Parse(path string, data []byte) (*Table, error) {
	t := &Table{path: path, lines: map[api.Name]line{}}
	for i, text := range strings.Split(string(data), "\n") {
		text, _, _ = strings.Cut(text, "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if err := t.add(i+1, words); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
	}
	return t, nil
}

func (t *Table) add(number int, words []string) error {
	if len(words) != 3 {
		return fmt.Errorf("expected a release, a kind and a name, found %q", strings.Join(words, " "))
	}
	version, err := api.ParseVersion(words[0])
	if err != nil {
		return err
	}
	name := api.Name{Kind: words[1], Name: words[2]}
	if !slices.Contains(api.Kinds, name.Kind) {
		return fmt.Errorf("unknown kind %q: expected one of %s", name.Kind, strings.Join(api.Kinds, ", "))
	}
	if first, ok := t.lines[name]; ok {
		return fmt.Errorf("%s has a second line, after line %d", name, first.number)
	}
	t.order = append(t.order, name)
	t.lines[name] = line{number, words[0], version}
	return nil
}

// Release returns the release that added a name. It is empty for names that
// every supported release has.
func (t *Table) Release(kind, name string) string {
	return t.lines[api.Name{Kind: kind, Name: name}].release
}
