// SPDX-License-Identifier: Apache-2.0

// Rping tests an RDMA connection with reads and writes. It works together with
// rdma-core's rping.
//
// The client offers a buffer with a text. The server reads it, and writes it to
// a second buffer of the client.
package main

import (
	"context"
	"math"
	"net"
	"os"
	"strconv"
	"syscall"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

const (
	minSize = len("rdma-ping-2147483647: ") + 1 // the longest beginning, and a zero; as in C
	maxSize = 64<<10 - 1                        // the same as in C's rping
)

// options holds the values of the flags.
type options struct {
	client, server, persistent, manualQP bool
	verbose, validate, debug             bool
	size, count, port, tos               int
	address, source                      string
	out                                  program.Output
}

func main() { os.Exit((&options{}).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{size: 64, port: 7174}
	return &program.Program{
		Name: "rping", Misused: int(syscall.EINVAL), Flags: o.flags, Run: o.run,
		Usage: `
rping -s [-P] [-a addr] [-p port] [-vVdq] [-C count]
rping -c -a addr [-I addr] [-p port] [-vVdq] [-C count] [-S size] [-t tos]`,
		Text: `
Tests a connection with RDMA reads and writes. The other end may be rdma-core's
rping.

Exit status: 0 on success, or if a server with -P was interrupted; 1 if something
failed; 22 if the arguments are wrong; 130 if interrupted.

Example: rping -s -P -v   and   rping -c -a 192.0.2.1 -v -C 10`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.BoolVarP(&o.client, "client", "c", false, "be a client")
	f.StringVarP(&o.source, "source", "I", "", "`address` to connect from (client)")
	f.BoolVarP(&o.server, "server", "s", false, "be a server")
	f.BoolVarP(&o.persistent, "persistent", "P", false, "serve any number of clients, one after the other or at the same time")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "print the data of each ping")
	f.BoolVarP(&o.validate, "validate", "V", false, "verify the data of each ping")
	f.BoolVarP(&o.debug, "debug", "d", false, "print each step")
	f.Number(&o.size, "size", "S", minSize, maxSize, "`bytes` of each ping")
	f.Number(&o.count, "count", "C", 0, math.MaxInt32, "`number` of pings (0: until interrupted)")
	f.StringVarP(&o.address, "address", "a", "", "`address` of the server; for a server, the one to listen on (default: all)")
	f.Port(&o.port, "`port` of the server")
	f.BoolVarP(&o.manualQP, "manual-qp", "q", false, "create the queue pair and move it through its states without librdmacm")
	f.Number(&o.tos, "tos", "t", 0, math.MaxUint8, "type of service `byte` of the packets (client)")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	o.out = out
	address := net.JoinHostPort(o.address, strconv.Itoa(o.port))
	switch {
	case o.client == o.server:
		return program.Misuse("either -s or -c must be given")
	case o.client && o.address == "":
		return program.Misuse("-c needs -a, the server's address")
	case o.client:
		return o.dial(ctx, address)
	}
	err := o.listen(ctx, address)
	if o.persistent && ctx.Err() != nil {
		return nil // the user has ended the server
	}
	return err
}

func (o *options) debugf(format string, args ...any) {
	if o.debug {
		o.out.Printf(format+"\n", args...)
	}
}
