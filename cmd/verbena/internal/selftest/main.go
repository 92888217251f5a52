// SPDX-License-Identifier: Apache-2.0

// Package selftest is the command verbena selftest. It proves Verbena on a
// device of this machine.
package selftest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/doctor/diagnose"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/report"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

// options holds the values of the flags and operands.
type options struct {
	device, file, only    string
	port                  int
	total, patience, soak time.Duration
	await                 time.Duration // how long to wait for the server
	listen                bool          // whether to be the server
	at, clients           int           // the port of the server, and how many clients it serves
	all, asJSON, identify bool
	list, compare         bool
	operands              [2]string
	checks                []check.Check
	system                func() report.System // what the machine runs
}

// Program returns the program of the command.
func Program() *program.Program {
	o := &options{checks: checks, system: system}
	return o.program()
}

func (o *options) program() *program.Program {
	return &program.Program{
		Name: "verbena selftest", Summary: "prove Verbena on a device of this machine, and write a report", Misused: program.ExitMisused,
		Flags: o.flags, Run: o.run, Operands: []*string{&o.operands[0], &o.operands[1]},
		Usage: `
verbena selftest [flags] [HOST]        check
verbena selftest -L [flags] [ADDRESS]  be the other end, until interrupted
verbena selftest -l                    list the checks
verbena selftest -c A B                compare two reports`,
		Text: `
Checks that a device does what Verbena needs and what the specification says:
the libraries, memory, queues, every kind of request that the device has, and
how mistakes end. Both ends of each connection are on this host; with HOST,
connections are made to it, where verbena selftest -L must run. The page says
what works, what differs from the specification and whether that matters, and
what to do. A device need not offer everything: what it does not have is no
failure.

It harms nothing: it takes no port down, uses a few megabytes of memory, leaves
others' objects alone, closes what it has opened, and ends within the time of
-t, or when it is interrupted. It needs no privileges.

With -o, it writes the report as JSON to a file, to be sent to Verbena's issues.
The report has no addresses, host names, device names or GUIDs, unless -I asks
for them. -c shows two such files side by side.

The server listens on ADDRESS, or on all addresses of all devices. It serves one
client after the other, and refuses the others meanwhile. It ends when it is
interrupted, or after -n clients. A client that finds no server ends, or tries
again for the time of -W.

With -r, it runs only the checks whose names begin with one of the words, which
are separated by commas. -l lists the checks.

With VERBENA_DEVICE=soft in the environment, it checks the device in user space.

Exit status: 0 if no check failed; 1 if one did, or, with -c, if the outcomes
differ; 2 for wrong arguments; 3 if there is no server at HOST, or if it ended
before the checks did, which says nothing about the device; 130 if interrupted.
Interrupting the server is its end, with 0.

Example: verbena selftest -d mlx5_0 -o report.json`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.device, "device", "d", "", "`name` of the device (default: the first with an active port)")
	f.Number(&o.port, "ib-port", "i", 1, 255, "`number` of the device's port (default: the first that is active)")
	f.StringVarP(&o.only, "run", "r", "", "only the checks whose names begin with one of these `words`, separated by commas")
	o.total, o.patience = 5*time.Minute, 10*time.Second
	f.Seconds(&o.total, "time", "t", time.Second, "time for all checks")
	f.Seconds(&o.patience, "wait", "w", time.Second/100, "time for anything that must happen")
	f.Seconds(&o.await, "await", "W", 0, "with HOST: time to wait for a server that is not there yet, or serves another client")
	o.soak, o.at = 10*time.Second, 7471
	f.Seconds(&o.soak, "soak", "s", 0, "time for which a connection is loaded")
	f.BoolVarP(&o.listen, "listen", "L", false, "be the server")
	f.Port(&o.at, "`port` of the server")
	f.Number(&o.clients, "clients", "n", 0, math.MaxInt32, "with -L: end after this `number` of clients (0: when interrupted)")
	f.BoolVarP(&o.all, "verbose", "v", false, "also print the checks that are ok, and all cases")
	f.BoolVarP(&o.asJSON, "json", "j", false, "print the report as JSON instead of the page")
	f.StringVarP(&o.file, "output", "o", "", "`file` that gets the report as JSON")
	f.BoolVarP(&o.identify, "identify", "I", false, "put names, addresses and GUIDs into the report")
	f.BoolVarP(&o.list, "list", "l", false, "list the checks, without running them")
	f.BoolVarP(&o.compare, "compare", "c", false, "show two reports side by side")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	switch {
	case o.compare && o.asJSON:
		return program.Misuse("-c and -j exclude each other")
	case o.compare:
		return o.sideBySide(ctx, out)
	case o.operands[1] != "":
		return program.Misuse("unexpected argument %q", o.operands[1])
	case o.all && o.asJSON:
		return program.Misuse("-v and -j exclude each other")
	case o.list && o.asJSON:
		return program.Misuse("-l and -j exclude each other")
	case o.await > 0 && (o.listen || o.operands[0] == ""):
		return program.Misuse("-W is for the client: it needs HOST")
	case o.listen && (o.file != "" || o.asJSON):
		return program.Misuse("the server has no report: pass -o and -j to the other end")
	}
	if host, port, err := net.SplitHostPort(o.operands[0]); err == nil {
		return program.Misuse("pass the port as a flag: -p %s %s", port, host)
	}
	if o.listen {
		return o.serve(ctx, out)
	}
	chosen, err := o.chosen()
	if err != nil {
		return err
	}
	if o.list {
		for _, c := range chosen {
			out.Printf("%-24s %s\n", c.Name, c.Proves)
		}
		return nil
	}
	return o.test(ctx, out, chosen)
}

// errDiffer reports that two reports have different outcomes.
var errDiffer = errors.New("the outcomes differ")

func (o *options) sideBySide(ctx context.Context, out program.Output) error {
	if o.operands[1] == "" {
		return program.Misuse("-c needs two files")
	}
	a, err := report.Read(ctx, o.operands[0])
	if err != nil {
		return err
	}
	b, err := report.Read(ctx, o.operands[1])
	if err != nil {
		return err
	}
	differ, err := report.Compare(out.Stdout, a, b)
	if err == nil && differ {
		err = errDiffer
	}
	return err
}

// chosen returns the checks that -r chooses.
func (o *options) chosen() (all []check.Check, err error) {
	if o.only == "" {
		return o.checks, nil
	}
	for word := range strings.SplitSeq(o.only, ",") {
		n := len(all)
		for _, c := range o.checks {
			if word != "" && strings.HasPrefix(c.Name, word) {
				all = append(all, c)
			}
		}
		if len(all) == n {
			return nil, program.Misuse("no check's name begins with %q: -l lists them", word)
		}
	}
	return all, nil
}

func (o *options) test(ctx context.Context, out program.Output, chosen []check.Check) error {
	if o.file != "" {
		if err := program.Writable(o.file); err != nil {
			return err
		}
	}
	info, err := o.find()
	if err != nil {
		return err
	}
	kind := report.KindOf(info.Device.Name)
	device, err := report.Describe(info, o.port, kind)
	if err != nil {
		return err
	}
	session, err := o.join(ctx, out, info.Device.Name)
	if err != nil {
		return err
	}
	target := check.Target{Device: info.Device.Name, Port: o.port, Kind: kind, Peer: session, Soak: o.soak}
	runner := check.Runner{Target: target, Patience: o.patience, Limit: max(30*time.Second, 3*o.patience) + o.soak}
	progress := &progress{}
	runner.Progress = progress.on(out.Stderr)
	limited, cancel := context.WithTimeoutCause(ctx, o.total, check.ErrTime)
	defer cancel()
	start := time.Now()
	results := runner.Run(limited, chosen)
	progress.clear()
	err = leave(ctx, session, slices.ContainsFunc(results, func(r check.Result) bool { return r.Outcome == check.Failed }))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	system := o.system()
	if !o.identify {
		private := report.NewPrivate(info, o.operands[0])
		results, system.Libraries = private.Results(results), private.Text(system.Libraries)
	}
	verbena, _, _ := strings.Cut(program.Version("verbena"), "\n")
	found := report.New(verbena, time.Since(start).Seconds(), system, device, results)
	found.Two = session != nil
	if o.identify {
		found.Identity = identity(info, o.port)
	}
	return errors.Join(o.write(out, found, chosen), err)
}

// find returns the device to check, and sets the port.
func (o *options) find() (info ibverbs.DeviceInfo, err error) {
	names := []string{o.device}
	if o.device == "" {
		devices, err := ibverbs.Devices()
		if err != nil {
			return info, err
		}
		names = nil
		for _, d := range devices {
			names = append(names, d.Name)
		}
	}
	err = ibverbs.ErrNoDevice
	for _, name := range names {
		if info, err = ibverbs.QueryDeviceInfo(name); err != nil {
			continue
		}
		for _, p := range info.Ports {
			if p.State == link.Active && (o.port == 0 || o.port == p.Port) {
				o.port = p.Port
				return info, nil
			}
		}
		err = fmt.Errorf("%s has no active port%s: verbena doctor says why", name, ofNumber(o.port))
	}
	return info, err
}

func ofNumber(port int) string {
	if port == 0 {
		return ""
	}
	return fmt.Sprintf(" %d", port)
}

func system() report.System {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease") // empty on other systems, which have no devices
	return report.System{Kernel: strings.TrimSpace(string(release)), Processor: runtime.GOARCH, Libraries: diagnose.Libraries()}
}

func identity(info ibverbs.DeviceInfo, port int) *report.Identity {
	host, _ := os.Hostname() // the report may do without
	i := &report.Identity{Host: host, Device: info.Device.Name, GUID: info.Attr.NodeGUID.String()}
	for _, g := range info.Ports[port-1].GIDs {
		i.GIDs = append(i.GIDs, g.GID.String())
	}
	return i
}

// write writes the report to where the flags say.
func (o *options) write(out program.Output, found report.Report, checks []check.Check) error {
	var errs []error
	written := o.file
	if o.file != "" {
		if err := found.Write(o.file); err != nil {
			written, errs = "", append(errs, err)
		}
	}
	if o.asJSON {
		errs = append(errs, out.JSON(found))
	} else {
		page := report.Page{Checks: checks, All: o.all, File: written}
		errs = append(errs, page.Write(out.Stdout, found))
	}
	if n := found.Count(check.Failed); n > 0 {
		errs = append(errs, fmt.Errorf("%d %s failed", n, plural(n, "check")))
	}
	return cmp.Or(errs...)
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}
