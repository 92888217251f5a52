// SPDX-License-Identifier: Apache-2.0

// Rdmaxserver receives one message over a reliable connection or an extended
// one. The client is rdmaxclient, or rdma_xclient of rdma-core.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/program"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// options holds the values of the flags.
type options struct {
	port int
	kind peers.Kind
}

func main() { os.Exit(new(options).program().Main(os.Args[1:], os.Stdout, os.Stderr)) }

func (o *options) program() *program.Program {
	*o = options{port: 7471}
	return &program.Program{
		Name: "rdmaxserver", Flags: o.flags, Run: o.run,
		Usage: "rdmaxserver [-p port] [-c r|x]",
		Text: `
Accepts one connection, and receives a message of 16 bytes through a shared
receive queue. The client is rdmaxclient, or rdma-core's rdma_xclient, with the
same -c. Extended reliable connections need devices that support them.

Exit status: 0 on success; 1 if something failed, or if the arguments are
wrong; 130 if interrupted.

Example: rdmaxserver -c x   and   rdmaxclient -c x -s 192.0.2.1`,
	}
}

func (o *options) flags(f *program.Flags) {
	f.Port(&o.port, "`port` to listen on, at all IPv4 addresses")
	o.kind.Add(f)
}

func (o *options) run(ctx context.Context, out program.Output) error {
	return out.Framed("rdmaxserver", func() error {
		if o.kind.Extended {
			if err := checkXRC(); err != nil {
				return err
			}
		}
		return o.serve(ctx)
	})
}

// checkXRC returns an error if no device supports extended reliable
// connections. Otherwise, the server would wait in vain.
func checkXRC() error {
	devices, err := rdmacm.Devices()
	if err != nil {
		return err
	}
	none := errors.New("no device supports extended reliable connections (XRC)")
	for _, device := range devices {
		domain, err := device.OpenXRCD(ibverbs.XRCDConfig{})
		if err == nil {
			return domain.Close()
		}
		none = fmt.Errorf("%w: %w", none, err)
	}
	return none
}

func (o *options) serve(ctx context.Context) (err error) {
	hints := o.kind.Hints(ibverbs.QPTypeXRCRecv)
	hints.Flags = rdmacm.AddrPassive
	infos, err := rdmacm.GetAddrInfo(ctx, "", strconv.Itoa(o.port), hints)
	if err != nil {
		return err
	}
	ln, err := endpoint.Create(ctx, infos[0], nil, nil)
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
	return o.receive(ctx, ep)
}

func (o *options) receive(ctx context.Context, ep *endpoint.Endpoint) error {
	// The shared receive queue comes first, because the queue pair of a
	// reliable connection takes its receives from it.
	srq, err := ep.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 1})
	if err != nil {
		return err
	}
	if _, err := ep.CreateQP(nil, ibverbs.QPConfig{}); err != nil {
		return err
	}
	received, err := ep.RegMsgs(make([]byte, peers.MessageSize))
	if err != nil {
		return err
	}
	if err := ep.PostRecv(0, received.All()); err != nil { // before the client can send
		return err
	}
	answer := rdmacm.ConnParam{}
	if o.kind.Extended {
		number, err := srq.Num() // the client's message must carry this number
		if err != nil {
			return err
		}
		answer.PrivateData = binary.BigEndian.AppendUint32(nil, number)
	}
	if err := ep.Accept(ctx, answer); err != nil {
		return err
	}
	// The device does not flush a shared receive queue when the connection ends,
	// so only the event ends the wait.
	life := peers.Watch(ctx, ep)
	if err := peers.Receive(life, ep); err != nil {
		return err
	}
	return peers.Leave(ctx, life, ep)
}
