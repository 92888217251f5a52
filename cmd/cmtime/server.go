// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// serve accepts connections, and closes each one when its peer has
// disconnected.
func (c *cmtime) serve(ctx context.Context, stderr io.Writer) error {
	listener, err := c.channel.NewID(rdmacm.PortSpaceTCP)
	if err != nil {
		return err
	}
	if err := listener.BindAddr(c.to.Src); err != nil {
		return err
	}
	if err := listener.Listen(0); err != nil {
		return err
	}
	for ev, err := range c.channel.Events(ctx) {
		if ctx.Err() != nil {
			return nil // the user has ended the server
		}
		if err != nil {
			return err
		}
		if err := c.answer(ev); err != nil {
			fmt.Fprintln(stderr, "cmtime:", err)
		}
	}
	return nil
}

func (c *cmtime) answer(ev *rdmacm.Event) (err error) {
	switch ev.Type {
	case rdmacm.EventConnectRequest:
		if err = c.domains.createQP(ev.ID); err == nil {
			err = ev.ID.Accept(rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, PeerRNRRetryCount: -1})
		}
		if err == nil {
			return nil
		}
	case rdmacm.EventDisconnected, rdmacm.EventConnectError, rdmacm.EventRejected, rdmacm.EventUnreachable:
		_ = ev.ID.Disconnect() // fails if the connection is over already
	default:
		return nil
	}
	_ = ev.ID.QP().Close() // fails if there is none
	return errors.Join(err, ev.ID.Close())
}

// domains holds, for each device, the objects that its connections share, as
// those of C's cmtime do.
type domains map[*ibverbs.Device]struct {
	pd *ibverbs.PD
	cq *ibverbs.CQ
}

func (d domains) createQP(id *rdmacm.ID) error {
	device, err := id.Device()
	if err != nil {
		return err
	}
	shared, known := d[device]
	if !known {
		if shared.pd, err = device.AllocPD(); err != nil {
			return err
		}
		if shared.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: 1}); err != nil {
			return err
		}
		d[device] = shared
	}
	_, err = id.CreateQP(shared.pd, ibverbs.QPConfig{SendCQ: shared.cq, RecvCQ: shared.cq, SendQueue: 1, RecvQueue: 1})
	return err
}
