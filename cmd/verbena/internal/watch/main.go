// SPDX-License-Identifier: Apache-2.0

// Package watch is the command verbena watch. It prints the events of RDMA
// devices.
package watch

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// options holds the values of the flags.
type options struct {
	devices []string
	count   int
	asJSON  bool
}

// Program returns the program of the command.
func Program() *program.Program { return (&options{}).program() }

func (o *options) program() *program.Program {
	return &program.Program{
		Name: "verbena watch", Summary: "print the events of devices and ports as they happen", Flags: o.flags, Run: o.run, Misused: program.ExitMisused,
		Usage: "verbena watch [-d device]... [-c count] [-j]",
		Text: `
Prints the events of this machine's RDMA devices, one on each line: the time,
the device, its port or -, and the event. libibverbs names the events of devices
and ports; RDMA_CM_EVENT_... are the events of an id bound to an address of
RoCE; the others are "device added" and "device removed". verbena watch takes no
part in connections. It reports on standard error when it starts to watch.

Exit status: 0 if it was interrupted, or has printed -c events; 1 if it cannot
watch; 2 for wrong arguments.

Example: verbena watch -d rxe0`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringSliceVarP(&o.devices, "device", "d", nil, "`name` of a device to watch, which may appear later (default: all)")
	f.Number(&o.count, "count", "c", 0, math.MaxInt32, "exit after this `number` of events (0: when interrupted)")
	f.JSONLines(&o.asJSON)
}

// event is one line of the output.
type event struct {
	Time   time.Time `json:"time"`
	Device string    `json:"device"`
	Port   int       `json:"port,omitempty"` // port; 0 for an event of the whole device
	Event  string    `json:"event"`
}

func (o *options) print(out io.Writer, e event) error {
	if o.asJSON {
		return program.Output{Stdout: out}.JSONLine(e)
	}
	port := "-"
	if e.Port != 0 {
		port = strconv.Itoa(e.Port)
	}
	_, err := fmt.Fprintf(out, "%s %s %s %s\n", e.Time.Format(time.RFC3339Nano), e.Device, port, e.Event)
	return err
}

func (o *options) run(ctx context.Context, out program.Output) error {
	w := &watcher{wanted: o.devices, stderr: out.Stderr, happened: make(chan func() []event), devices: map[string]*device{}}
	defer w.waiters.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer func() {
		for _, d := range w.devices {
			w.drop(d)
		}
	}()
	if err := w.start(ctx); err != nil {
		return err
	}
	left := o.count
	for e := range w.events(ctx) {
		if err := o.print(out.Stdout, e); err != nil {
			return err
		}
		if left--; left == 0 {
			break
		}
	}
	return nil
}
