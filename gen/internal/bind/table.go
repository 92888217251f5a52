// SPDX-License-Identifier: Apache-2.0

package bind

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/propose"
)

// tableName is the file of what a person has decided.
const tableName = "conventions.txt"

//go:embed legend.txt
var legend string

// table is the text of the decisions, and what it says.
type table struct {
	file  string
	text  string
	known *conventions.Table
}

// openTable reads the decisions of a place. It returns nil if there are none.
func openTable(p *place) (*table, error) {
	t := &table{file: filepath.Join(p.dir, tableName)}
	text, err := os.ReadFile(t.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t.text = string(text)
	return t, t.parse()
}

func (t *table) parse() (err error) {
	t.known, err = conventions.Parse(t.file, []byte(t.text))
	return err
}

// bound returns the library and the header that the table is about.
func (t *table) bound(p *place) (*conventions.Library, string, error) {
	if len(t.known.Libraries) != 1 || t.known.Libraries[0].Name != p.name {
		return nil, "", fmt.Errorf("%s: one line begins with: library %s", t.file, p.name)
	}
	for _, h := range t.known.Headers {
		if h.Package != "" {
			return t.known.Libraries[0], h.Name, nil
		}
	}
	return nil, "", fmt.Errorf("%s: no header is bound", t.file)
}

// foreign are the classes of rdma-core's functions alone.
var foreign = []conventions.Class{conventions.Poll, conventions.Wait, conventions.Rereg, conventions.EAI}

// supported fails if the table has what only tables of this module can have.
func (t *table) supported() error {
	var errs []error
	for _, f := range t.known.Funcs {
		switch {
		case slices.Contains(foreign, f.Class):
			errs = append(errs, fmt.Errorf("%s: func %s: the class %s is for functions of rdma-core", t.file, f.Name, f.Class))
		case f.Own:
			errs = append(errs, fmt.Errorf("%s: func %s: inline=own is for functions of rdma-core", t.file, f.Name))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// newTable returns the table for a header of which nothing is known.
func newTable(p *place, h *header, soname string) (*table, error) {
	t := &table{file: filepath.Join(p.dir, tableName)}
	t.text = fmt.Sprintf(legend, h.name, p.name) + fmt.Sprintf("library %s %s prefix=%s_ debian=- fedora=- program=-%s\n\nheader %s %s\n", p.name, soname, p.name, unread, h.name, p.name)
	return t, t.parse()
}

const unread = "  # unread"

var isUnread = regexp.MustCompile(`(?m)^[^#\n].*#[ \t]*unread[ \t\r]*$`)

// unread returns the lines that are marked as such.
func (t *table) unread() []string { return isUnread.FindAllString(t.text, -1) }

// add adds lines. Those of headers are as good as their names, but the rest is
// for a person to read.
func (t *table) add(lines []propose.Line) error {
	kind := ""
	for _, line := range lines {
		if line.Kind != kind && line.C == "" {
			t.text += "\n"
		}
		kind = line.Kind
		if line.C != "" {
			t.text += "\n# " + line.C + ";\n"
		}
		t.text += line.Text + unread + "\n"
	}
	return t.parse()
}

// lacking returns those of the lines for functions that the table lacks. It
// fails if the table binds one of the functions.
func (t *table) lacking(lines []propose.Line) (lacks []propose.Line, err error) {
	for _, line := range lines {
		name := strings.Fields(line.Text)[1]
		switch f := t.known.Funcs[name]; {
		case f == nil && !slices.Contains(lacks, line):
			lacks = append(lacks, line)
		case f != nil && f.Skip == "":
			return nil, fmt.Errorf("%s: func %s cannot be bound; its line is to be: %s", t.file, name, line.Text)
		}
	}
	return lacks, nil
}

// family returns lines for the headers that belong to h: those that it includes
// and that lie in its folder, unless that is where all headers lie, or in one
// of its name.
func family(a *api.API, h *header, known *conventions.Table, pkg string) []propose.Line {
	var lines []propose.Line
	dir, stem := path.Dir(h.name), strings.TrimSuffix(path.Base(h.name), ".h")
	for _, other := range a.Headers {
		isNear := dir != "." && path.Dir(other.Name) == dir || strings.HasPrefix(other.Name, path.Join(dir, stem)+"/")
		if other.Included && isNear && known.Header(other.Name) == nil {
			lines = append(lines, propose.Line{Kind: "header", Text: "header " + other.Name + " " + pkg})
		}
	}
	return lines
}

// prefix returns the prefix that most functions of a header have.
func prefix(a *api.API, binds func(header string) bool, otherwise string) string {
	count := map[string]int{}
	best, all := "", 0
	for _, f := range a.Functions {
		if !binds(f.Header) {
			continue
		}
		all++
		if word, _, ok := strings.Cut(strings.TrimLeft(f.Name, "_"), "_"); ok {
			if count[word]++; count[word] > count[best] {
				best = word
			}
		}
	}
	if best == "" || 2*count[best] < all {
		return otherwise
	}
	return best + "_"
}
