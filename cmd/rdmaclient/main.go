// SPDX-License-Identifier: Apache-2.0

// Rdmaclient exchanges one message with a server over RDMA. The server is
// rdmaserver, or rdma_server of rdma-core.
//
// It shows rdmacm's synchronous calls: each waits for what it starts.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// options holds the values of the flags.
type options struct {
	server program.Server
}

func main() { os.Exit(new(options).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	return &program.Program{
		Name: "rdmaclient", Flags: o.flags, Run: o.run,
		Usage: "rdmaclient -s server [-p port]",
		Text: `
Connects, sends a message of 16 bytes, and receives one. The server is
rdmaserver, or rdma-core's rdma_server.

Exit status: 0 on success; 1 if something failed, or if the arguments are
wrong; 130 if interrupted.

Example: rdmaserver   and   rdmaclient -s 192.0.2.1`,
	}
}

func (o *options) flags(f *program.Flags) {
	o.server.Add(f)
}

func (o *options) run(ctx context.Context, out program.Output) error {
	if err := o.server.Check(); err != nil {
		return err
	}
	return out.Framed("rdmaclient", func() error { return o.exchange(ctx) })
}

func (o *options) exchange(ctx context.Context) (err error) {
	infos, err := rdmacm.GetAddrInfo(ctx, o.server.Address, o.server.Service(), &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP})
	if err != nil {
		return err
	}
	ep, err := endpoint.Create(ctx, infos[0], nil, &peers.Queues)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	sent, err := peers.Prepare(ep)
	if err != nil {
		return err
	}
	if _, err := ep.Connect(ctx, rdmacm.ConnParam{}); err != nil {
		return err
	}
	if err := peers.Ask(peers.Watch(ctx, ep), ep, sent); err != nil {
		return err
	}
	return ep.Disconnect(ctx)
}
