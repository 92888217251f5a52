// SPDX-License-Identifier: Apache-2.0

// Rcopy copies a file over RDMA. It works together with rdma-core's rcopy.
//
// The client sends the server a message with a file's path and mode, one with
// the file's data, and one at the end. The server answers each message.
package main

import (
	"cmp"
	"context"
	"net"
	"os"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rsocket"
)

// options holds the values of the flags and operands.
type options struct {
	source, target, bind string
	port                 int
}

func main() { os.Exit((&options{}).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{port: 7427}
	return &program.Program{
		Name: "rcopy", Flags: o.flags, Run: o.run, Operands: []*string{&o.source, &o.target},
		Usage: `
rcopy [-b addr] [-p port]                                 the server
rcopy [-b addr] [-p port] source server[:destination]     the client`,
		Text: `
Copies a file to another host over RDMA, with the rsocket protocol. The other end
may be rdma-core's rcopy. Without a destination, the file has the same path there
as here. A server that is an IPv6 address with a destination is in brackets.

The server serves any number of clients, until it is interrupted. It writes
wherever it may write itself, whatever a client asks for: run it as a user that may
write only what every client may.

Exit status: 0 on success, or if a server was interrupted; 1 if something failed
or the arguments are wrong; 130 if a client was interrupted.

Example: rcopy   and   rcopy big.iso 192.0.2.1:/tmp/copy.iso`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.bind, "bind", "b", "", "`address` to connect from, or to listen on (default: the system's choice, or all)")
	f.Port(&o.port, "`port` of the server")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	if o.source == "" {
		return o.serve(ctx, out)
	}
	server, destination := parseTarget(o.target)
	if server == "" {
		return program.Misuse("the server is missing")
	}
	return o.send(ctx, out, server, cmp.Or(destination, o.source))
}

// listen listens for clients.
func (o *options) listen(ctx context.Context) (net.Listener, error) {
	return new(rsocket.ListenConfig).Listen(ctx, "rdma", net.JoinHostPort(o.bind, strconv.Itoa(o.port)))
}

// dial connects to the server.
func (o *options) dial(ctx context.Context, server string) (net.Conn, error) {
	d := rsocket.Dialer{LocalAddr: o.bind}
	return d.DialContext(ctx, "rdma", net.JoinHostPort(server, strconv.Itoa(o.port)))
}
