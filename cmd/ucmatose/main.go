// SPDX-License-Identifier: Apache-2.0

// Ucmatose tests many RDMA connections at once. It works together with
// rdma-core's ucmatose.
//
// The client makes many connections. When all are up, the server sends messages
// over each, and the client answers with as many. Then the server disconnects.
package main

import (
	"context"
	"errors"
	"math"
	"os"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// options holds the values of the flags.
type options struct {
	server, bind             string
	hints                    rdmacm.AddrInfo
	space                    rdmacm.PortSpace
	connections, count, size int
	port, tos, ackExponent   int
	migrate                  bool
}

func main() { os.Exit((&options{}).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{connections: 1, count: 10, size: 100, port: 7471}
	return &program.Program{
		Name: "ucmatose", Flags: o.flags, Run: o.run,
		Usage: "ucmatose [-s addr [-t tos]] [-b addr] [-p port] [-c connections] [-C count] [-S size] [-f format] [-P space] [-a exponent] [-m]",
		Text: `
Makes many connections, and sends messages over each in both directions. The
other end, which may be rdma-core's ucmatose, needs the same -c, -C, -S and -P.

Exit status: 0 on success; 1 if something failed, or if the arguments are wrong;
130 if interrupted.

Example: ucmatose -c 10   and   ucmatose -s 192.0.2.1 -c 10`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.server, "server", "s", "", "`address` of the server; without it, this is the server")
	f.StringVarP(&o.bind, "bind", "b", "", "`address` to connect from, or to listen on (default: the system's choice, or all)")
	f.Port(&o.port, "`port` of the server")
	f.Number(&o.connections, "connections", "c", 1, math.MaxUint16, "`number` of connections")
	f.Number(&o.count, "count", "C", 0, math.MaxUint16, "`number` of messages in each direction of a connection")
	f.Number(&o.size, "size", "S", 0, 1<<30, "`bytes` of each message (0: no messages)")
	f.Number(&o.tos, "tos", "t", 0, math.MaxUint8, "type of service `byte` of the packets (client)")
	f.Number(&o.ackExponent, "ack-timeout", "a", 0, 31, "`exponent` n: send again after 4.096 us * 2^n without an answer (0: the system's choice)")
	f.BoolVarP(&o.migrate, "migrate", "m", false, "migrate to another event channel before disconnecting")
	program.Choice(f, &o.space, "port-space", "P", "tcp", "port `space`", map[string]rdmacm.PortSpace{
		"tcp": rdmacm.PortSpaceTCP, "ib": rdmacm.PortSpaceIB,
	})
	program.Choice(f, &o.hints, "format", "f", "name", "`kind` of addresses", map[string]rdmacm.AddrInfo{
		"name": {}, "ip": {Flags: rdmacm.AddrNumericHost}, "ipv6": {Flags: rdmacm.AddrNumericHost},
		"gid": {Flags: rdmacm.AddrNumericHost | rdmacm.AddrFamily, Family: rdmacm.FamilyIB},
	})
}

func (o *options) run(ctx context.Context, out program.Output) (err error) {
	o.count *= min(o.size, 1) // without a size there are no messages
	n := max(o.count, 1)
	t := &test{options: o, queues: ibverbs.QPConfig{SendQueue: n, RecvQueue: n, SignalAll: true}}
	t.life, t.fail = context.WithCancelCause(ctx)
	o.hints.PortSpace = o.space
	if t.to, err = rdmacm.LookUp(ctx, o.bind, o.server, strconv.Itoa(o.port), &o.hints); err == nil {
		err = errors.Join(t.run(), t.close())
	}
	status := 0
	if err != nil {
		status = 1
	}
	out.Printf("test complete\nreturn status %d\n", status)
	return err
}
