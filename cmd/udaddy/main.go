// SPDX-License-Identifier: Apache-2.0

// Udaddy exchanges datagrams over RDMA. It works together with rdma-core's
// udaddy.
//
// The client requests a queue pair for each of its connections, and sends
// messages to each. When the server has received all messages, it sends the
// same number back.
package main

import (
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rdmacm"
)

const port = "7174" // as in C, which has no flag for it

// options holds the values of the flags.
type options struct {
	server, bind             string
	format, space            string
	spaceNumber              uint16
	connections, count, size int
	tos                      uint8
	out                      program.Output
}

func main() { os.Exit(new(options).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{format: "name", space: "udp", connections: 1, count: 10, size: 100}
	return &program.Program{
		Name: "udaddy", Flags: o.flags, Run: o.run,
		Usage: `
udaddy [-b addr] [-c connections] [-C count] [-S size]
udaddy -s addr [-b addr] [-c connections] [-C count] [-S size] [-t tos]`,
		Text: `
Exchanges datagrams. With -s it is the client, otherwise the server. Both need
the same -c, -C and -S. The other end may be rdma-core's udaddy. If a datagram is
lost, udaddy waits for it until it is interrupted.

Exit status: 0 on success; 1 if something failed, or if the arguments are
wrong; 130 if interrupted.

Example: udaddy -b 192.0.2.1   and   udaddy -s 192.0.2.1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.server, "server", "s", "", "`address` of the server")
	f.StringVarP(&o.bind, "bind", "b", "", "`address` to listen on (default: all IPv4 addresses), or to send from")
	f.StringVarP(&o.format, "format", "f", o.format, "`kind` of addresses: name, ip, ipv6, or gid for native InfiniBand addresses")
	f.StringVarP(&o.space, "port-space", "P", o.space, "`kind` of port: udp, or ipoib for queue pairs in IPoIB's partition")
	f.Uint16VarP(&o.spaceNumber, "port-space-number", "p", 0, "`number` of the port space, instead of -P: 0x111 is udp, 2 is ipoib")
	f.Number(&o.connections, "connections", "c", 0, peers.MaxCount, "`number` of queue pairs")
	f.Number(&o.count, "count", "C", 0, peers.MaxCount, "`number` of messages to each")
	f.Number(&o.size, "size", "S", 0, peers.MaxSize, "`bytes` of each message, up to the port's MTU (0: no messages)")
	f.Uint8VarP(&o.tos, "tos", "t", 0, "type of service `byte` of the packets (client)")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	hints, err := o.hints()
	if err != nil {
		return err
	}
	if o.size == 0 {
		o.count = 0
	}
	o.out = out
	run := o.runServer
	if o.server != "" {
		run = o.runClient
	}
	if err := run(ctx, hints); err != nil {
		return err
	}
	out.Printf("test complete\nreturn status 0\n")
	return nil
}

// hints returns the hints for looking up addresses according to the flags.
func (o *options) hints() (hints rdmacm.AddrInfo, err error) {
	switch strings.ToLower(o.format) {
	case "name":
	case "ip", "ipv6":
		hints.Flags = rdmacm.AddrNumericHost
	case "gid":
		hints.Flags, hints.Family = rdmacm.AddrNumericHost|rdmacm.AddrFamily, rdmacm.FamilyIB
	default:
		return hints, program.Misuse("-f %q: expected name, ip, ipv6 or gid", o.format)
	}
	switch strings.ToLower(o.space) {
	case "udp":
		hints.PortSpace = rdmacm.PortSpaceUDP
	case "ipoib":
		hints.PortSpace = rdmacm.PortSpaceIPoIB
	default:
		return hints, program.Misuse("-P %q: expected udp or ipoib", o.space)
	}
	hints.PortSpace = cmp.Or(rdmacm.PortSpace(o.spaceNumber), hints.PortSpace)
	return hints, nil
}

// ends returns the ends of all connections, which are not connected yet.
func (o *options) ends() []*peers.End {
	var ends []*peers.End
	for range o.connections {
		ends = append(ends, &peers.End{Count: o.count, Size: o.size})
	}
	return ends
}

func (o *options) config(e *peers.End) *rdmacm.DatagramConfig {
	return &rdmacm.DatagramConfig{RecvQueue: o.count, Setup: e.SetupReceives}
}
