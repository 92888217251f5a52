// SPDX-License-Identifier: Apache-2.0

// Rdmaxclient sends one message to a server over a reliable connection or an
// extended one. The server is rdmaxserver, or rdma_xserver of rdma-core.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// options holds the values of the flags.
type options struct {
	server program.Server
	kind   peers.Kind
}

func main() { os.Exit(new(options).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	return &program.Program{
		Name: "rdmaxclient", Flags: o.flags, Run: o.run,
		Usage: "rdmaxclient -s server [-p port] [-c r|x]",
		Text: `
Connects, and sends a message of 16 bytes. The server is rdmaxserver, or
rdma-core's rdma_xserver, with the same -c. Extended reliable connections need
devices that support them.

Exit status: 0 on success; 1 if something failed, or if the arguments are
wrong; 130 if interrupted.

Example: rdmaxserver -c x   and   rdmaxclient -c x -s 192.0.2.1`,
	}
}

func (o *options) flags(f *program.Flags) {
	o.server.Add(f)
	o.kind.Add(f)
}

func (o *options) run(ctx context.Context, out program.Output) error {
	if err := o.server.Check(); err != nil {
		return err
	}
	return out.Framed("rdmaxclient", func() error { return o.send(ctx) })
}

func (o *options) send(ctx context.Context) (err error) {
	infos, err := rdmacm.GetAddrInfo(ctx, o.server.Address, o.server.Service(), o.kind.Hints(ibverbs.QPTypeXRCSend))
	if err != nil {
		return err
	}
	ep, err := endpoint.Create(ctx, infos[0], nil, &ibverbs.QPConfig{SendQueue: 1, SignalAll: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.Close()) }()
	message, err := ep.RegMsgs(make([]byte, peers.MessageSize))
	if err != nil {
		return err
	}
	batch, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		return err
	}
	if err := batch.Send(0, 0, message.All()); err != nil {
		return err
	}
	accepted, err := ep.Connect(ctx, rdmacm.ConnParam{})
	if err != nil {
		return err
	}
	if o.kind.Extended {
		if err := address(batch, accepted.PrivateData); err != nil {
			return err
		}
	}
	if _, err := ep.QP().PostSend(batch); err != nil {
		return err
	}
	if err := peers.Sent(peers.Watch(ctx, ep), ep); err != nil {
		return err
	}
	return ep.Disconnect(ctx)
}

// address makes the request go to the shared receive queue whose number is in
// the server's private data. An extended connection can reach all shared
// receive queues of a process.
func address(batch *ibverbs.SendBatch, privateData []byte) error {
	if len(privateData) < 4 {
		return fmt.Errorf("the server's private data has %d bytes, too few for the number of its shared receive queue", len(privateData))
	}
	return batch.WR(0).SetXRCSRQ(binary.BigEndian.Uint32(privateData))
}
