// SPDX-License-Identifier: Apache-2.0

// Package perf is the command verbena perf. It measures latency and bandwidth.
package perf

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/measure"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/plot"
	"github.com/verbena-go/verbena/ibverbs"
)

// options holds the values of the flags.
type options struct {
	name                  string // name of the test
	transport             string // transport of the queue pairs
	both, all, json       bool
	qps                   int
	duration              int // duration of the test in seconds
	events, netpoll       bool
	size, iterations      int
	depth, receives, list int
	moderation, inline    int
	timeout               int // timeout as exponent: 4.096 us * 2^timeout; 0 means the default
	where                 measure.Where
	plot                  string
	compare               []string
	mesh                  string        // hosts to measure every pair of
	wait                  time.Duration // how long --mesh waits for agents
	atOnce                int           // pairs of --mesh that are measured at once; 0 means as many as possible
}

// Program returns the program of the command.
func Program() *program.Program { return (&options{}).program() }

const unset = -1 // unset is the value of a flag whose default depends on the test.

func (o *options) program() *program.Program {
	*o = options{
		transport: "RC", qps: 1, size: unset, iterations: unset, depth: unset, receives: unset,
		list: 1, moderation: unset, inline: unset, where: measure.Where{TCPPort: mesh.DefaultPort}, wait: defaultWait,
	}
	return &program.Program{
		Name: "verbena perf", Summary: "measure latency and bandwidth between two machines, or all pairs of many", Flags: o.flags, Run: o.run, Misused: program.ExitMisused, Operands: []*string{&o.name, &o.where.Server},
		Words: slices.Concat(names(false), names(true)),
		Usage: `
verbena perf TEST [flags]          the server
verbena perf TEST [flags] HOST     the client, with the same flags
verbena perf --plot file.svg --compare name=file.json ...
verbena perf --mesh HOST,HOST,... [flags]`,
		Text: `
Measures the latency or bandwidth of an operation between two ends. TEST is one
of

  ` + strings.Join(names(false), ", ") + `,
  ` + strings.Join(names(true), ", ") + `

The other end may be perftest's program of that name, such as ib_send_lat, with
the same flags, which mean the same; for fetchadd and cmpswap it is
ib_atomic_lat or ib_atomic_bw with -A. writeimm, -R and --conn need verbena perf
at both ends.

Each row shows perftest's columns, the bandwidth in Gb/s, and this process's
processor time for each message. Latencies are in microseconds and measure one
way, or the whole operation for reads and atomics; 1 MiB is 2^20 bytes, 1 Gb is
10^9 bits. Without -e, each end occupies a processor to poll for completions.

With -D, the test takes that many seconds at each end, after its first message,
instead of a number of messages, and there is no peak. With -b, both ends send
at once: the row has what both do together.

With --conn, the methods of an rdmacm.Conn do the work: Post, Receiver.Next, Read
and so on for latency, Post with -l messages for bandwidth. They spin for a short
time if that has paid lately, and with -e never.

Two ends of verbena perf exchange their flags, and fail if test, type, sizes,
number of messages, -D, -q, -b or -R differ. perftest exchanges none of these:
with another program, another -n or only one -b or -D, both ends may wait
forever.

With --mesh, every pair of the hosts is measured. On each of them runs verbena
agent, whose help says more about the environment variable VERBENA_TOKEN, which
both need. A host may have the port of its agent behind a colon. If hosts have
several devices, each port is measured with those of the same name.

A pair is measured with send_lat and write_bw, in both directions, for the
seconds of -D each (default: 1), or with -n messages. -s, -q, -t, -l and -Q are
for write_bw. Several pairs are measured at once, but no host is in two of them.

The tables show the median and 99th percentile of each link's latency, and its
bandwidth, from the hosts of the rows to those of the columns. Below stand hosts,
ports and pairs that fail, or are slower than the rest by the median and the
median absolute deviation (MAD), also when they are measured again. --plot
draws a heat map. A host whose agent does not answer in the time of -W, at first
or later, is reported, and the rest is measured without it.

Exit status: 0 on success; 1 if something failed, such as a pair of --mesh; 2 for wrong arguments; 130 if
interrupted.

Example: verbena perf write_lat -a   and   verbena perf write_lat -a --plot lat.svg 192.0.2.1`,
	}
}

// names returns the names of all tests of latency, or of bandwidth.
func names(bandwidth bool) (all []string) {
	for _, op := range measure.Ops {
		all = append(all, (&measure.Test{Op: op, Bandwidth: bandwidth}).Name())
	}
	return all
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.transport, "connection", "c", o.transport, "`type` of the queue pair: RC, UC or UD")
	f.BoolVarP(&o.all, "all", "a", false, "measure all sizes from 2 bytes to 8 MiB, with UD up to the MTU")
	f.Number(&o.size, "size", "s", 1, 1<<30, "`bytes` of a message (default: 2 for latency, 65536 for bandwidth, 8 for atomics)")
	f.Number(&o.iterations, "iters", "n", 5, math.MaxInt32, "`messages` of each size (default: 1000, or 5000 for the bandwidth of writes)")
	f.Number(&o.duration, "duration", "D", 1, 1<<20, "`seconds` that the test takes, instead of -n messages")
	f.Number(&o.qps, "qp", "q", 1, measure.MaxQPs, "`number` of queue pairs, for bandwidth")
	f.BoolVarP(&o.both, "bidirectional", "b", false, "send in both directions at once, for bandwidth")
	f.Number(&o.depth, "tx-depth", "t", 1, 1<<15, "`messages` in flight (default: 128 for bandwidth)")
	f.Number(&o.receives, "rx-depth", "r", 1, 1<<15, "`receives` posted ahead (default: 512, or as many as the device allows)")
	f.Number(&o.list, "post-list", "l", 1, 1<<10, "`messages` posted in one call")
	f.Number(&o.moderation, "cq-mod", "Q", 1, 1<<15, "`messages` for each completion (default: 100, or the post list)")
	f.Number(&o.inline, "inline-size", "I", 0, 1<<12, "largest message in `bytes` to send inline (default: 220 for latency, or less where the device has less, 0 for bandwidth)")
	f.Number(&o.timeout, "qp-timeout", "u", 1, 31, "a packet without an answer is repeated after 4.096 us times 2 to the power of this `number`, with RC (default: 14, which is 67 ms)")
	f.BoolVarP(&o.events, "events", "e", false, "sleep until completions arrive")
	f.BoolVar(&o.netpoll, "netpoll", false, "with -e: sleep in Go's runtime, as CQ.Wait does, instead of in C")
	f.StringVarP(&o.where.Device, "ib-dev", "d", "", "`device` to use (default: the one with the control connection's address, or the first)")
	f.Number(&o.where.Port, "ib-port", "i", 0, 255, "`port` of the device (0: the first active one)")
	f.Port(&o.where.TCPPort, "TCP `port` of the control connection, or of the agents")
	f.BoolVarP(&o.where.RDMACM, "rdma-cm", "R", false, "connect the queue pairs with rdma_cm")
	f.BoolVar(&o.where.Conn, "conn", false, "measure the methods of an rdmacm.Conn; the other end has --conn or -R")
	f.JSON(&o.json)
	f.StringVarP(&o.plot, "plot", "", "", "plot the results against the size, or of --mesh a heat map, into an SVG `file`, whose name ends in .svg")
	f.StringVarP(&o.mesh, "mesh", "", "", "measure every pair of these `hosts`, separated by commas")
	f.Number(&o.atOnce, "at-once", "", 0, math.MaxInt16, "`pairs` of --mesh that are measured at once (0: half as many as there are hosts)")
	f.Seconds(&o.wait, "wait", "W", time.Second, "`seconds` to wait for agents of --mesh, beyond -D")
	f.StringArrayVarP(&o.compare, "compare", "", nil, "also plot the JSON of another run, given as `name=file`; may be repeated")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	if o.plot != "" {
		if err := plot.CheckFile(o.plot); err != nil {
			return program.Misuse("--plot %v", err)
		}
		if err := program.Writable(o.plot); err != nil {
			return err
		}
	}
	if o.mesh != "" {
		return o.runMesh(ctx, out)
	}
	if o.plot != "" && len(o.compare) > 0 && o.name == "" {
		return o.draw(ctx, nil)
	}
	t, err := o.test()
	if err != nil {
		return err
	}
	if o.where.Server == "" {
		if err := o.where.Check(); err != nil {
			return err
		}
	}
	result := measure.NewResult(t)
	var shown progress
	err = measure.Run(ctx, t, o.where, measure.Tell{
		Ready: func() {
			if !o.json {
				out.Printf("%s\n%s\n", t, t.Head())
			}
		},
		Row: func(r measure.Row) {
			shown.clear()
			result.Rows = append(result.Rows, r)
			if !o.json {
				out.Printf("%s\n", t.Line(r))
			}
		},
		Progress: shown.on(out.Stderr),
	})
	shown.clear()
	if err != nil {
		return err
	}
	if o.json {
		if err := out.JSON(result); err != nil {
			return err
		}
	}
	if o.plot != "" {
		return o.draw(ctx, &result)
	}
	return nil
}

// draw plots the result, if it is not nil, and the results to compare it with.
func (o *options) draw(ctx context.Context, result *measure.Result) error {
	var series []plot.Series
	if result != nil {
		series = append(series, plot.Series{Name: result.Test, Result: *result})
	}
	for _, c := range o.compare {
		name, file, ok := strings.Cut(c, "=")
		if !ok {
			return program.Misuse("--compare %s: expected name=file", c)
		}
		r, err := measure.ReadResult(ctx, file)
		if err != nil {
			return err
		}
		series = append(series, plot.Series{Name: name, Result: r})
	}
	return plot.Draw(o.plot, series)
}

// or returns a flag's value, or otherwise if the flag was not given.
func or(value, otherwise int) int {
	if value == unset {
		return otherwise
	}
	return value
}

// test returns the test that the flags describe.
func (o *options) test() (*measure.Test, error) {
	types := map[string]ibverbs.QPType{"RC": ibverbs.QPTypeRC, "UC": ibverbs.QPTypeUC, "UD": ibverbs.QPTypeUD}
	t := &measure.Test{
		Transport: types[strings.ToUpper(o.transport)], Events: o.events, Netpoll: o.netpoll,
		List: o.list, Receives: or(o.receives, 512), Fit: measure.Fit{Receives: o.receives == unset, Inline: o.inline == unset}, QPs: o.qps, Both: o.both, Duration: time.Duration(o.duration) * time.Second,
	}
	var ok bool
	switch t.Op, t.Bandwidth, ok = measure.Named(o.name); {
	case o.name == "":
		return nil, program.Misuse("the test is missing, such as send_lat or write_bw, or the hosts of --mesh")
	case !ok:
		return nil, program.Misuse("no such test: %q", o.name)
	case t.Transport == 0:
		return nil, program.Misuse("-c %s: no such type", o.transport)
	case o.duration > 0 && o.iterations != unset:
		return nil, program.Misuse("-D and -n exclude each other")
	}
	iterations, depth, size, inline := 1000, 16, 2, 220
	if t.Bandwidth {
		depth, size, inline = 128, 64<<10, 0
		if t.Op == measure.Write {
			iterations = 5000
		}
	}
	moderation := 100
	if t.List > 1 {
		moderation = t.List
	}
	if t.Op == measure.FetchAdd || t.Op == measure.CompSwap {
		size = 8
	}
	if o.timeout > 0 {
		t.Timeout = 4096 * time.Nanosecond << o.timeout
	}
	t.Iterations, t.Depth, t.Inline = or(o.iterations, iterations), or(o.depth, depth), or(o.inline, inline)
	t.Moderation = or(o.moderation, min(moderation, t.Depth))
	t.Iterations += (t.List - t.Iterations%t.List) % t.List
	if t.Duration > 0 {
		t.Iterations = measure.Endless
	}
	t.Sizes = []int{or(o.size, size)}
	if o.all {
		t.Sizes = nil
		for bytes := 2; bytes <= cmp.Or(largest[t.Transport], 8<<20); bytes *= 2 {
			t.Sizes = append(t.Sizes, bytes)
		}
	}
	if err := t.Check(); err != nil {
		return nil, program.Misuse("%v", err)
	}
	if (o.where.RDMACM || o.where.Conn) && t.Transport != ibverbs.QPTypeRC {
		return nil, program.Misuse("-R and --conn connect queue pairs of type RC")
	}
	if (o.where.RDMACM || o.where.Conn) && (t.QPs > 1 || t.Both) {
		return nil, program.Misuse("-R and --conn have one queue pair and one direction")
	}
	if (o.where.RDMACM || o.where.Conn) && t.Timeout > 0 {
		return nil, program.Misuse("-R and --conn have no -u: rdma_cm chooses the timeout")
	}
	if o.where.Conn && t.Duration > 0 {
		return nil, program.Misuse("--conn has no -D")
	}
	return t, nil
}

// largest maps a type of queue pair to the largest size of -a, if it is not 8
// MiB.
var largest = map[ibverbs.QPType]int{ibverbs.QPTypeUD: 1024}
