// SPDX-License-Identifier: Apache-2.0

// Package agent is the command verbena agent. It measures on its host for a
// verbena perf --mesh.
package agent

import (
	"context"
	"math"
	"net"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/cmd/verbena/internal/perf/mesh"
)

// options holds the values of the flags.
type options struct {
	address     string
	port, count int
	devices     []string
}

// Program returns the program of the command.
func Program() *program.Program {
	o := &options{port: mesh.DefaultPort}
	return &program.Program{
		Name: "verbena agent", Summary: "measure on this host for verbena perf --mesh", Flags: o.flags, Run: o.run,
		Misused: program.ExitMisused, Operands: []*string{&o.address},
		Usage: `verbena agent [flags] [ADDRESS]`,
		Text: `
Waits for a verbena perf --mesh, on ADDRESS or on all addresses, and measures
latency and bandwidth with the agents of other hosts as that says. A scheduler
starts an agent on each host. It serves one verbena perf --mesh at a time, and
then the next, until it is interrupted or has served as many as -c says. When a
verbena perf --mesh ends, or its host is gone, the agent ends what it measures.

The agents and verbena perf --mesh need the same secret text in the environment
variable VERBENA_TOKEN, of 16 bytes or more. The agent trusts programs that know
it: they can make the agent connect to any TCP address, and use its devices and
the network. Other programs are refused. They can keep the port busy, so it should not
be open to the world. The text is not sent. The ends do not encrypt what they
say: a host on the way can change it.

Exit status: 0 if it has served as many as -c says, or is interrupted; 1 if
something failed; 2 for wrong arguments.

Example: VERBENA_TOKEN=... verbena agent -c 1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.Port(&o.port, "TCP `port` of the agent")
	f.Number(&o.count, "count", "c", 0, math.MaxInt32, "end after this `number` of verbena perf --mesh (0: when interrupted)")
	f.StringSliceVarP(&o.devices, "ib-dev", "d", nil, "`devices` to use, separated by commas (default: all)")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	token, err := mesh.ReadToken()
	if err != nil {
		return err
	}
	a := mesh.NewAgent(token, o.devices, func(event string) { out.Printf("%s\n", event) })
	if err := a.Check(); err != nil {
		return err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(o.address, strconv.Itoa(o.port)))
	if err != nil {
		return err
	}
	out.Printf("listening on %v\n", ln.Addr())
	return a.Serve(ctx, ln, o.count)
}
