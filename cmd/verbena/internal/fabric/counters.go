// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/fabric"
)

// counters is the command verbena fabric counters, which shows the counters of
// ports.
type counters struct {
	local
	address, port string
	reset         bool
}

func (c *counters) program() *program.Program {
	return &program.Program{
		Name: "verbena fabric counters", Usage: "verbena fabric counters [-d device] [-p port] [-r] [-j] [ADDRESS [PORT]]", Misused: program.ExitMisused,
		Summary: "show and reset the counters of ports", Operands: []*string{&c.address, &c.port}, Flags: c.allFlags, Run: c.run,
		Text: `
Shows the counters of a port, as perfquery and perfquery -x do. Without PORT,
that is the port with the LID, or each port of a switch; 255 stands for all
ports of a switch that adds them up. A node that has counters of 64 bits shows
these. Data is counted in units of 4 bytes.

A counter does not wrap. "saturated" says that it has its largest value, and may
have missed events. With -r, sets the counters to 0 after it has shown them.

An address that is a route is asked for its LID first, as only LIDs have
counters: a subnet manager must have assigned it.

If the node refuses the request for a port, the other ports are still shown. If
it no longer answers, the ports before are shown, as they may have been reset.

JSON has all digits of counters, which may have 64 bits.

Exit status: 0 if all ports answered; 1 if not; 2 for wrong arguments.

Example: verbena fabric counters -r 5 1`,
	}
}

func (c *counters) allFlags(f *program.Flags) {
	f.BoolVarP(&c.reset, "reset", "r", false, "set the counters to 0 after showing them")
	c.flags(f)
}

// counterReport has the counters of a port.
type counterReport struct {
	LID       fabric.LID               `json:"lid"`
	Port      int                      `json:"port"`
	Counters  fabric.Counters          `json:"counters"`
	Extended  *fabric.ExtendedCounters `json:"extended_counters"` // null: the node has none
	Saturated []string                 `json:"saturated"`         // names of the counters with their largest value
	Reset     bool                     `json:"reset"`             // whether the command has set the counters to 0

	all []fabric.Counter // counters to print, with 64 bits if the node has such a counter
}

func (c *counters) run(ctx context.Context, out program.Output) error {
	number, err := portOf(c.port, fabric.AllPorts)
	if err != nil {
		return err
	}
	return c.ask(ctx, c.address, func(ctx context.Context, client *fabric.Client, address fabric.Address) error {
		return c.show(ctx, out, client, address, number)
	})
}

// show prints what read returns. If read fails, show also prints the counters
// that were read before, which may have been reset.
func (c *counters) show(ctx context.Context, out program.Output, client counterClient, address fabric.Address, number int) error {
	reports, failed := c.read(ctx, client, address, number)
	if failed != nil && len(reports) == 0 {
		return failed
	}
	write := func() error { return printCounters(out.Stdout, reports) }
	if c.asJSON {
		write = func() error { return out.JSON(reports) }
	}
	if err := write(); err != nil {
		return err
	}
	return failed
}

// counterClient has the methods of a [fabric.Client] that read calls.
type counterClient interface {
	NodeInfo(ctx context.Context, to fabric.Address) (fabric.NodeInfo, error)
	PortInfo(ctx context.Context, to fabric.Address, port int) (fabric.PortInfo, error)
	Performance(ctx context.Context, lid fabric.LID) (fabric.Performance, error)
	Counters(ctx context.Context, lid fabric.LID, port int) (fabric.Counters, error)
	ExtendedCounters(ctx context.Context, lid fabric.LID, port int) (fabric.ExtendedCounters, error)
	ResetCounters(ctx context.Context, lid fabric.LID, port int) error
	ResetExtendedCounters(ctx context.Context, lid fabric.LID, port int) error
}

// read reads the counters of the port with the given number, and resets them if
// the command has -r. If number is -1, it does so for all ports of a switch, or
// for the port of another node that has received the request. If the node
// refuses the request for one of the ports, read continues with the next port.
// With an error, read returns the counters that it has read.
func (c *counters) read(ctx context.Context, client counterClient, address fabric.Address, number int) ([]counterReport, error) {
	info, err := client.NodeInfo(ctx, address)
	if err != nil {
		return nil, err
	}
	lid, ok := address.LID()
	if !ok {
		port, err := client.PortInfo(ctx, address, 0)
		if err != nil {
			return nil, err
		}
		if lid = port.LID; !lid.IsUnicast() {
			return nil, fmt.Errorf("%s has no LID: no subnet manager has assigned one", address)
		}
	}
	numbers := []int{number}
	switch {
	case number >= 0:
	case info.Type != fabric.Switch:
		numbers[0] = info.LocalPort
	default:
		numbers = nil
		for n := 1; n <= info.NumPorts; n++ {
			numbers = append(numbers, n)
		}
	}
	can, err := client.Performance(ctx, lid)
	if err != nil {
		return nil, err
	}
	reports := []counterReport{}
	var failed []error
	for _, n := range numbers {
		report, err := c.readPort(ctx, client, can, lid, n)
		if report != nil {
			reports = append(reports, *report)
		}
		if err == nil {
			continue
		}
		failed = append(failed, err)
		if _, refused := errors.AsType[fabric.Status](err); !refused {
			break // nor would the node answer for the other ports
		}
	}
	return reports, errors.Join(failed...)
}

// readPort reads the counters of a port, and resets them if the command has -r.
// If it could not reset the counters that it has read, it returns them with the
// error.
func (c *counters) readPort(ctx context.Context, client counterClient, can fabric.Performance, lid fabric.LID, number int) (*counterReport, error) {
	read, err := client.Counters(ctx, lid, number)
	if err != nil {
		return nil, err
	}
	report := &counterReport{LID: lid, Port: number, Counters: read, Saturated: []string{}}
	if can.Extended() {
		extended, err := client.ExtendedCounters(ctx, lid, number)
		if err != nil {
			return nil, err
		}
		report.Extended = &extended
	}
	report.all = best(can, read, report.Extended)
	for _, counter := range report.all {
		if counter.Saturated() {
			report.Saturated = append(report.Saturated, counter.Name)
		}
	}
	if c.reset {
		if err := client.ResetCounters(ctx, lid, number); err != nil {
			return report, err
		}
		if can.Extended() {
			if err := client.ResetExtendedCounters(ctx, lid, number); err != nil {
				return report, err
			}
		}
		report.Reset = true
	}
	return report, nil
}

// best returns all counters that a node has. Each is the one of 64 bits if the
// node has both widths.
func best(can fabric.Performance, counters fabric.Counters, extended *fabric.ExtendedCounters) []fabric.Counter {
	wide := map[string]fabric.Counter{}
	var kinds []fabric.Counter
	if extended != nil {
		for i, c := range extended.All() {
			switch {
			case i < 4, i >= 8 && can.ExtendedErrors():
				wide[c.Name] = c
			case i < 8 && can.ExtendedByKind():
				kinds = append(kinds, c)
			}
		}
	}
	var all []fabric.Counter
	for _, c := range counters.All() {
		switch c.Name {
		case "PortXmitWait":
			all = append(all, kinds...)
			if !can.XmitWait() {
				continue
			}
		case "QP1Dropped":
			if !can.QP1Dropped() {
				continue
			}
		}
		if w, ok := wide[c.Name]; ok {
			c = w
		}
		all = append(all, c)
	}
	return all
}

// printCounters prints the counters of each port under a line about it.
func printCounters(w io.Writer, reports []counterReport) error {
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(w)
		}
		after := ""
		if r.Reset {
			after = ", now reset"
		}
		fmt.Fprintf(w, "LID %s port %d%s\n", r.LID, r.Port, after)
		table := newTable(w)
		for _, c := range r.all {
			fmt.Fprintf(table, "  %s\t%d", c.Name, c.Value)
			if c.Saturated() {
				fmt.Fprint(table, "\tsaturated")
			}
			fmt.Fprintln(table)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}
