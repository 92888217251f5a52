package emit

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Coverage writes how much of each header is bound and, for what is not, why.
// It returns an error if something is left out without a reason.
func Coverage(in Input, w io.Writer) error {
	type count struct{ bound, all int }
	counts := map[string]*count{}
	var headers, missing []string
	var errs []error
	for _, p := range packages(in) {
		errs = append(errs, p.errs...)
		for _, f := range p.functions {
			c := counts[f.Header]
			if c == nil {
				c = new(count)
				counts[f.Header] = c
				headers = append(headers, f.Header)
			}
			c.all++
			if f.why == "" {
				c.bound++
			} else {
				missing = append(missing, fmt.Sprintf("%s\t%s", f.Name(), f.why))
			}
		}
	}
	if len(errs) > 0 {
		return errs[0]
	}
	slices.Sort(headers)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "header\tfunctions bound\tof\n")
	var total count
	for _, h := range headers {
		c := counts[h]
		total.bound += c.bound
		total.all += c.all
		fmt.Fprintf(t, "%s\t%d\t%d\n", h, c.bound, c.all)
	}
	fmt.Fprintf(t, "total\t%d\t%d\n", total.bound, total.all)
	t.Flush()
	enumerators := 0
	for _, e := range in.API.Enums {
		enumerators += len(e.Values)
	}
	fmt.Fprintf(w, "\nall of %d enums with %d enumerators, %d structs and unions, %d macros\n\nnot bound:\n",
		len(in.API.Enums), enumerators, len(in.API.Structs), len(in.API.Macros))
	for _, m := range missing {
		fmt.Fprintf(t, "  %s\n", m)
	}
	return t.Flush()
}
