// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// ErrUnexplained reports a declaration that is neither bound nor explained.
var ErrUnexplained = errors.New("neither bound nor explained")

// share holds the number of a header's declarations of one kind, and how many
// of them are bound.
type share struct{ bound, all int }

func (s share) String() string {
	if s.all == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", s.bound, s.all)
}

func (s *share) count(bound bool) {
	s.all++
	if bound {
		s.bound++
	}
}

// The kinds of declarations, in the order of the report's columns.
const (
	functions = iota
	enums
	enumerators
	structs
	constants
	aliases
	kinds
)

// leftOut is a declaration that is not bound.
type leftOut struct{ header, name, why string }

// report records the bound part of each header.
type report struct {
	bound   map[string]bool // names of the bound headers
	shares  map[string]*[kinds]share
	leftOut []leftOut
	skipped []leftOut // headers that are not bound
}

// headers records which headers are bound, and why each of the others is not.
func (r *report) headers(inputs []Input) {
	for _, h := range inputs[0].API.Headers {
		line := inputs[0].Known.Header(h.Name)
		for _, in := range inputs[1:] {
			if in.Known.Binds(h.Name) {
				line = in.Known.Header(h.Name)
			}
		}
		switch {
		case line == nil:
			r.skipped = append(r.skipped, leftOut{h.Name, "the header", ""})
		case line.Package == "":
			r.skipped = append(r.skipped, leftOut{h.Name, "the header", line.Skip})
		default:
			r.bound[h.Name] = true
			if r.shares[h.Name] == nil {
				r.shares[h.Name] = new([kinds]share)
			}
		}
	}
	// The bound headers of the other inputs.
	for _, in := range inputs[1:] {
		for _, h := range in.Known.Headers {
			if h.Package != "" {
				r.bound[h.Name] = true
				if r.shares[h.Name] == nil {
					r.shares[h.Name] = new([kinds]share)
				}
			}
		}
	}
}

// note counts a declaration. One that is not bound needs a reason.
func (r *report) note(kind int, header, name string, bound bool, why string) {
	if r.shares[header] == nil {
		r.shares[header] = new([kinds]share)
	}
	r.shares[header][kind].count(bound)
	if !bound {
		r.leftOut = append(r.leftOut, leftOut{header, name, why})
	}
}

// Coverage writes, as Markdown, how many declarations of each header are bound,
// and why the others are not. It finds the bound ones in the generated code.
// The snapshot of the first input must list all headers. Coverage returns
// ErrUnexplained if a declaration is neither bound nor explained, and another
// error if the bindings cannot be made.
func Coverage(inputs []Input, w io.Writer) error {
	r := &report{bound: map[string]bool{}, shares: map[string]*[kinds]share{}}
	for _, in := range inputs {
		if err := r.input(in); err != nil {
			return err
		}
	}
	r.headers(inputs)
	if err := r.write(w, inputs[0].API.Version); err != nil {
		return err
	}
	return r.unexplained()
}

// input records the declarations in the headers of one input.
func (r *report) input(in Input) error {
	all, err := packages(in)
	if err != nil {
		return err
	}
	rendered, err := renderAll(all)
	if err != nil {
		return err
	}
	for _, p := range all {
		d, err := readDeclared(rendered[p])
		if err != nil {
			return err
		}
		p.cover(r, d)
	}
	for _, m := range in.API.Unvalued {
		r.leftOut = append(r.leftOut, leftOut{m.Header, m.Name, in.Known.Macros[m.Name]})
	}
	return nil
}

// cover records every declaration that belongs to p. d has those that the
// generated code declares.
func (p *pkg) cover(r *report, d *declared) {
	for _, f := range p.functions {
		bound := f.why == "" && d.callable[f.goName] && d.other[f.goName]
		r.note(functions, f.Header, f.Name(), bound, f.why)
	}
	for _, e := range p.enums {
		name := p.enumName(e)
		r.note(enums, e.Header, "enum "+e.Key(), name == "-" || d.types[name] && d.callable["Parse"+name], "")
		for _, v := range e.Values {
			r.note(enumerators, e.Header, v.Name, d.consts[enumeratorName(v.Name)], "")
		}
	}
	for _, s := range p.structs {
		_, tag, _ := strings.Cut(s.Name, " ")
		r.note(structs, s.Header, s.Name, d.hasStruct(p.typeName(tag), s.Members), "")
	}
	for _, s := range p.API.Structs {
		if _, tag, _ := strings.Cut(s.Name, " "); len(s.Members) == 0 && p.Home(s.Header) == p.name {
			r.note(structs, s.Header, s.Name, false, p.Known.Structs[tag])
		}
	}
	for _, m := range p.macros {
		r.note(constants, m.Header, m.Name, d.consts[constName(m.Name)], "")
	}
	for _, a := range p.aliases {
		r.note(aliases, a.Header, a.Name, d.types[p.typeName(a.Name)], "")
	}
}

func (r *report) write(w io.Writer, version string) error {
	fmt.Fprintf(w, "<!-- %s -->\n\n# Coverage\n\n", marker)
	fmt.Fprintf(w, "What the bindings have of the headers of rdma-core %s that are bound: declarations bound, of all that there\n"+
		"are. Of other headers, in part, there are the structs that those hold by value. Every header of the packages\n"+
		"libibverbs-dev and librdmacm-dev is in this table or in the last one; headers of libibumad-dev and libibmad-dev are\n"+
		"in this one. `make coverage` writes this page and fails if anything is neither bound nor explained below. Constants\n"+
		"are macros with a value; aliases are macros that give a struct or an enum a second name.\n\n", version)
	t := tabwriter.NewWriter(w, 0, 8, 1, ' ', tabwriter.Debug)
	row := func(cells ...any) {
		fmt.Fprint(t, "|")
		for _, c := range cells {
			fmt.Fprintf(t, " %v\t", c)
		}
		fmt.Fprintln(t)
	}
	row("header", "functions", "enums", "enumerators", "structs", "constants", "aliases")
	row("---", "---", "---", "---", "---", "---", "---")
	var total [kinds]share
	for _, header := range slices.Sorted(maps.Keys(r.shares)) {
		cells := []any{header}
		if !r.bound[header] {
			cells[0] = header + ", in part"
		}
		for kind, s := range r.shares[header] {
			cells = append(cells, s)
			total[kind].bound += s.bound
			total[kind].all += s.all
		}
		row(cells...)
	}
	cells := []any{"total"}
	for _, s := range total {
		cells = append(cells, s)
	}
	row(cells...)
	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprint(w, "\n## What is not bound\n\n")
	row("name", "header", "why")
	row("---", "---", "---")
	for _, l := range r.leftOut {
		row(l.name, l.header, l.why)
	}
	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprint(w, "\n## Headers that are not bound\n\n")
	row("header", "why")
	row("---", "---")
	for _, l := range r.skipped {
		row(l.header, l.why)
	}
	return t.Flush()
}

func (r *report) unexplained() error {
	var errs []error
	for _, l := range slices.Concat(r.leftOut, r.skipped) {
		if l.why == "" || l.why == notWritten {
			errs = append(errs, fmt.Errorf("%s: %s is %w", l.header, l.name, ErrUnexplained))
		}
	}
	return errors.Join(errs...)
}
