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

// tableName is the name of the file with the decisions.
const tableName = "conventions.txt"

//go:embed legend.txt
var legend string

// table is the file with the decisions: its text, and the parsed lines.
type table struct {
	file  string
	text  string
	known *conventions.Table
}

// openTable reads the table of a place. It returns nil if the file does not
// exist.
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

// advise adds to the error of a scan which lines help.
func (t *table) advise(err error) error {
	return fmt.Errorf(`%w
Lines in %s leave out what has no form in Go, or give it another name:
    func NAME value skip="why"     a function or variable
    func NAME CLASS name=GoName    a function
    struct TAG opaque="why"        the members of a struct or union
    struct TAG name=GoName         a struct, union or typedef
    enum TAG values name=GoName    an enum
    macro NAME skip="why"          a macro
For all else, bind a header of your own that declares what you need`, err, t.file)
}

// bound returns the library that the table defines, and the name of the header
// that it binds.
func (t *table) bound(p *place) (*conventions.Library, string, error) {
	if len(t.known.Libraries) != 1 || t.known.Libraries[0].Name != p.name {
		return nil, "", fmt.Errorf("%s: expected exactly one line for a library, which begins with: library %s", t.file, p.name)
	}
	for _, h := range t.known.Headers {
		if h.Package != "" {
			return t.known.Libraries[0], h.Name, nil
		}
	}
	return nil, "", fmt.Errorf("%s: no line binds a header", t.file)
}

// foreign lists the classes that only functions of rdma-core can have.
var foreign = []conventions.Class{conventions.Poll, conventions.Wait, conventions.Rereg, conventions.EAI}

// supported fails if the table has classes or attributes that only tables of
// this module can have.
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

// newTable returns the first table for a header, with the lines of the library
// and the header.
func newTable(p *place, h *header, soname string) (*table, error) {
	t := &table{file: filepath.Join(p.dir, tableName)}
	t.text = fmt.Sprintf(legend, h.name, p.name) + fmt.Sprintf("library %s %s prefix=%s_ debian=- fedora=- program=-%s\n\nheader %s %s\n", p.name, soname, p.name, unread, h.name, p.name)
	return t, t.parse()
}

const unread = "  # unread"

var isUnread = regexp.MustCompile(`(?m)^[^#\n].*#[ \t]*unread[ \t\r]*$`)

// unread returns the lines that are marked as unread.
func (t *table) unread() []string { return isUnread.FindAllString(t.text, -1) }

// add adds lines to the table, marked as unread. Above the line of a function,
// it writes the C declaration as a comment.
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

// lacking returns those of the lines whose functions have no line in the table.
// The lines are for functions that cannot be bound, so lacking fails if the
// table binds one of them.
func (t *table) lacking(lines []propose.Line) (lacks []propose.Line, err error) {
	for _, line := range lines {
		name := strings.Fields(line.Text)[1]
		switch f := t.known.Funcs[name]; {
		case f == nil && !slices.Contains(lacks, line):
			lacks = append(lacks, line)
		case f != nil && f.Skip == "":
			return nil, fmt.Errorf("%s: func %s cannot be bound; replace its line by: %s", t.file, name, line.Text)
		}
	}
	return lacks, nil
}

// family returns lines that bind the headers that belong to h. These are
// headers that h includes and that are in the same subfolder of the include
// folder, or in a folder with the name of h.
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

// prefix returns the prefix that at least half of the functions of a header
// have, or otherwise.
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
