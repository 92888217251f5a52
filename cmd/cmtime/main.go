// SPDX-License-Identifier: Apache-2.0

// Cmtime measures how long many RDMA connections take for each step of
// connecting. It works together with rdma-core's cmtime.
package main

import (
	"context"
	"os"
	"strconv"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rdmacm"
)

// cmtime is a run of the program, with its flags.
type cmtime struct {
	server, bind               string
	connections, port, retries int
	timeout                    time.Duration
	json                       bool

	to      rdmacm.AddrInfo // address to connect to, or to listen on
	channel *rdmacm.EventChannel
	domains domains
	nodes   []node // connections of the client
	waiting int    // number of nodes that have not completed the step
}

func main() { os.Exit((&cmtime{}).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (c *cmtime) program() *program.Program {
	*c = cmtime{connections: 100, port: 7471, retries: 2, timeout: 2 * time.Second}
	return &program.Program{
		Name: "cmtime", Flags: c.flags, Run: c.run,
		Usage: "cmtime [-s addr] [-b addr] [-p port] [-c connections] [-r retries] [-t ms] [-j]",
		Text: `
Measures how long many connections take for each step. For each step, the client
prints the time for all connections in milliseconds. In microseconds, it prints
this time divided by the number of connections, and the minimum, mean, three
percentiles and maximum of the single connections' times. JSON lists the same
values, with the unit in each name. The other end may be rdma-core's cmtime.

Exit status: 0 on success, or if a server was interrupted; 1 if something failed
or the arguments are wrong; 130 if a client was interrupted.

Example: cmtime   and   cmtime -s 192.0.2.1 -c 1000`,
	}
}

func (c *cmtime) flags(f *program.Flags) {
	f.StringVarP(&c.server, "server", "s", "", "`address` of the server; without it, this is the server")
	f.StringVarP(&c.bind, "bind", "b", "", "`address` to connect from, or to listen on (default: the system's choice, or all)")
	f.Port(&c.port, "`port` of the server")
	f.Number(&c.connections, "connections", "c", 1, 1<<20, "`number` of connections")
	f.Number(&c.retries, "retries", "r", 0, 7, "`times` to retry resolving and sending")
	f.Milliseconds(&c.timeout, "timeout", "t", "time limit for resolving")
	f.BoolVarP(&c.json, "json", "j", false, "print JSON")
}

// run runs the client or the server. Like C's program, it leaves objects open
// at the end, for the system to close.
func (c *cmtime) run(ctx context.Context, out program.Output) (err error) {
	if c.to, err = rdmacm.LookUp(ctx, c.bind, c.server, strconv.Itoa(c.port), nil); err != nil {
		return err
	}
	if c.channel, err = rdmacm.NewEventChannel(); err != nil {
		return err
	}
	c.domains = domains{}
	if c.server == "" {
		return c.serve(ctx, out.Stderr)
	}
	return c.connectAll(ctx, out.Stdout)
}
