// SPDX-License-Identifier: Apache-2.0

package stat

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs/stat"
)

// report is the JSON output.
type report struct {
	Devices []device `json:"devices"`
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// title returns what a device is called, with its peer and process if it has
// them. port is that of the counters, or 0.
func (d device) title(port int) string {
	text := d.Name
	switch {
	case d.Name == "" && d.Peer == "":
		text = "an engine"
	case d.Name == "":
		text = "peer " + program.Printable(d.Peer)
	case d.Peer != "":
		text = program.Printable(text + " to " + d.Peer)
	case port > 0:
		text += fmt.Sprintf(" port %d", port)
	}
	if d.Process == nil {
		return text
	}
	return text + " of " + program.Printable(ownerName(*d.Process))
}

// print prints counters. Those of a port follow a line about the port.
func (o *options) print(w io.Writer, devices []device) error {
	for i, d := range devices {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if d.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", d.title(0), program.Printable(d.Error))
		}
		if len(d.Counters) > 0 {
			fmt.Fprintln(w, d.title(0))
			if err := o.printCounters(w, d.Counters); err != nil {
				return err
			}
		}
		for _, p := range d.Ports {
			fmt.Fprintf(w, "%s, %s, %s\n", d.title(p.Port), cmp.Or(p.State, "state unknown"), cmp.Or(p.LinkLayer, "link unknown"))
			if err := o.printCounters(w, p.Counters); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *options) printCounters(w io.Writer, counters []stat.Counter) error {
	if len(counters) == 0 {
		fmt.Fprintln(w, "  no counters")
		return nil
	}
	table, shown := newTable(w), 0
	for _, c := range counters {
		if c.Value == 0 && !o.all {
			continue
		}
		shown++
		fmt.Fprintf(table, "  %s\t%s\t%d\t%s", c.Group, c.Name, c.Value, cmp.Or(c.Unit, "-"))
		if o.all {
			fmt.Fprintf(table, "\t%s", cmp.Or(c.Help, "-"))
		}
		fmt.Fprintln(table)
	}
	if shown == 0 {
		fmt.Fprintln(w, "  all counters are 0")
	}
	return table.Flush()
}
