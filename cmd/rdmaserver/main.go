// SPDX-License-Identifier: Apache-2.0

// Rdmaserver exchanges one message with a client over RDMA. The client is
// rdmaclient, or rdma_client of rdma-core.
//
// It shows rdmacm's synchronous calls: each waits for what it starts.
package main

import (
	"context"
	"errors"
	"os"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// options holds the values of the flags.
type options struct {
	address string
	port    int
}

func main() { os.Exit(new(options).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{address: "0.0.0.0", port: 7471}
	return &program.Program{
		Name: "rdmaserver", Flags: o.flags, Run: o.run,
		Usage: "rdmaserver [-s address] [-p port]",
		Text: `
Accepts one connection, receives a message of 16 bytes, and sends one. The
client is rdmaclient, or rdma-core's rdma_client.

Exit status: 0 on success; 1 if something failed, or if the arguments are
wrong; 130 if interrupted.

Example: rdmaserver -s ::   and   rdmaclient -s 2001:db8::1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.StringVarP(&o.address, "server", "s", o.address, "`address` to listen on (::, all addresses, IPv4 and IPv6)")
	f.Port(&o.port, "`port` to listen on")
}

func (o *options) run(ctx context.Context, out program.Output) error {
	return out.Framed("rdmaserver", func() error { return o.serve(ctx) })
}

func (o *options) serve(ctx context.Context) (err error) {
	hints := &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceTCP}
	infos, err := rdmacm.GetAddrInfo(ctx, o.address, strconv.Itoa(o.port), hints)
	if err != nil {
		return err
	}
	// The endpoint of each request gets a queue pair with this config.
	ln, err := endpoint.Create(ctx, infos[0], nil, &peers.Queues)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ln.Close()) }()
	if err := ln.Listen(0); err != nil {
		return err
	}
	ep, err := ln.GetRequest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	return exchange(ctx, ep)
}

func exchange(ctx context.Context, ep *endpoint.Endpoint) error {
	sent, err := peers.Prepare(ep)
	if err != nil {
		return err
	}
	if err := ep.Accept(ctx, rdmacm.ConnParam{}); err != nil {
		return err
	}
	life := peers.Watch(ctx, ep)
	if err := peers.Receive(life, ep); err != nil {
		return err
	}
	if err := peers.Answer(life, ep, sent); err != nil {
		return err
	}
	return peers.Leave(ctx, life, ep)
}
