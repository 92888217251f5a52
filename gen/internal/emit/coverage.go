package emit

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
)

// count is what the bindings have of one header.
type count struct {
	bound, functions, enums, enumerators, structs, macros int
}

func (c *count) add(o *count) {
	c.bound += o.bound
	c.functions += o.functions
	c.enums += o.enums
	c.enumerators += o.enumerators
	c.structs += o.structs
	c.macros += o.macros
}

func (c *count) row(w io.Writer, name string) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\n", name, c.bound, c.functions, c.enums, c.enumerators, c.structs, c.macros)
}

// Coverage writes how much of each header is bound and, for functions that are
// not, why; everything else is bound or an error. It returns an error too if
// the bindings cannot be made, or if a function is left out without a reason.
func Coverage(in Input, w io.Writer) error {
	all, err := packages(in)
	if err != nil {
		return err
	}
	if _, err := renderAll(all); err != nil {
		return err
	}
	counts, missing := tally(all)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "header\tfunctions bound\tof\tenums\tenumerators\tstructs\tmacros\n")
	total := new(count)
	for _, header := range slices.Sorted(maps.Keys(counts)) {
		counts[header].row(t, header)
		total.add(counts[header])
	}
	total.row(t, "total")
	fmt.Fprintf(t, "\nfunctions that are not bound:\n")
	for _, f := range missing {
		fmt.Fprintf(t, "  %s\t%s\n", f.Name(), f.why)
	}
	return t.Flush()
}

func tally(all []*pkg) (counts map[string]*count, missing []*function) {
	counts = map[string]*count{}
	of := func(header string) *count {
		if counts[header] == nil {
			counts[header] = new(count)
		}
		return counts[header]
	}
	for _, p := range all {
		for _, f := range p.functions {
			of(f.Header).functions++
			if f.why == "" {
				of(f.Header).bound++
			} else {
				missing = append(missing, f)
			}
		}
		for _, e := range p.enums {
			of(e.Header).enums++
			of(e.Header).enumerators += len(e.Values)
		}
		for _, s := range p.structs {
			of(s.Header).structs++
		}
		for _, m := range p.macros {
			of(m.Header).macros++
		}
	}
	return counts, missing
}
