// SPDX-License-Identifier: Apache-2.0

// Package rdmaclient is the program of the same name, apart from its main
// function, so that tests can run it.
//
// It shows rdmacm's synchronous way: every call waits for what it starts.
package rdmaclient

import (
	"context"
	"errors"
	"io"

	"github.com/verbena-go/verbena/internal/cmd/message"
	"github.com/verbena-go/verbena/internal/cmd/program"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// options are the flags.
type options struct {
	server program.Server
}

// Main runs rdmaclient and returns its exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	return new(options).program().Main(args, stdout, stderr)
}

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
	ep, err := endpoint.Create(ctx, infos[0], nil, &message.Queues)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	sent, err := message.Prepare(ep)
	if err != nil {
		return err
	}
	if _, err := ep.Connect(ctx, rdmacm.ConnParam{}); err != nil {
		return err
	}
	if err := message.Ask(ctx, ep, sent); err != nil {
		return err
	}
	return ep.Disconnect(ctx)
}
