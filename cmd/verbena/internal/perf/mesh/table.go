// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Write writes the result as text: a table of each metric for each rail, from
// the hosts of the rows to those of the columns, and what was found.
func (r *Result) Write(w io.Writer) {
	links := map[[3]string]*Link{} // by rail, From and To
	for i := range r.Links {
		l := &r.Links[i]
		links[[3]string{l.Rail, l.From, l.To}] = l
	}
	width := 0
	for _, h := range r.Hosts {
		width = max(width, utf8.RuneCountInString(h.Name))
	}
	for _, at := range r.tables() {
		m, b := at.metric, at.baseline
		fmt.Fprintf(w, "%s on %s in %s: median %s, MAD %g %%\n", m.Title, b.Rail, b.Unit, Number(b.Median), b.MAD)
		fmt.Fprintf(w, "%*s", width+5, "")
		for i := range r.Hosts {
			fmt.Fprintf(w, "%8d", i+1)
		}
		fmt.Fprintln(w)
		for i, from := range r.Hosts {
			fmt.Fprintf(w, "%4d %s%s", i+1, from.Name, strings.Repeat(" ", width-utf8.RuneCountInString(from.Name)))
			for _, to := range r.Hosts {
				fmt.Fprintf(w, "%8s", m.cell(links[[3]string{b.Rail, from.Name, to.Name}]))
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w)
	}
	if len(r.Findings) == 0 {
		fmt.Fprintln(w, "Nothing stands out.")
	}
	for _, f := range r.Findings {
		label := "slow"
		if f.What == fails || f.What == missing {
			label = f.What
		}
		fmt.Fprintf(w, "%s: %s\n", label, f.Text)
	}
}

// cell returns the text of a link in a table.
func (m *Metric) cell(l *Link) string {
	if l == nil {
		return "-"
	}
	if v, ok := m.Of(l); ok {
		return Number(v)
	}
	return "x"
}

// table is a metric of a rail.
type table struct {
	metric   *Metric
	baseline Baseline
}

// tables returns what was measured, rail by rail.
func (r *Result) tables() (all []table) {
	for _, rail := range r.Rails {
		for _, m := range Metrics {
			if b, ok := r.Baseline(rail, m); ok {
				all = append(all, table{m, b})
			}
		}
	}
	return all
}
