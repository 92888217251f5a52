// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Limits of the flags. What a device allows may be less.
const (
	MaxCount = 1 << 16
	MaxSize  = 4096 // the largest MTU that a port can have
)

// End is one end of an exchange of datagrams, with its memory. Each message has
// the number of the sender's queue pair as immediate data. The other bytes of a
// message are ignored.
type End struct {
	Conn        *rdmacm.DatagramConn
	Count, Size int
	memory      *ibverbs.MR // memory for all messages
	receives    []*rdmacm.Receive
}

// Setup prepares the end for sending. It is for DatagramConfig.Setup.
func (e *End) Setup(conn *rdmacm.DatagramConn) (err error) {
	e.Conn = conn
	if e.Count == 0 {
		return nil
	}
	if e.Size > conn.MTU() {
		return fmt.Errorf("messages of %d bytes: the port's MTU allows %d: %w", e.Size, conn.MTU(), syscall.EMSGSIZE)
	}
	e.memory, err = conn.Alloc(e.Size, ibverbs.AccessLocalWrite)
	return err
}

// SetupReceives is like Setup, and also posts all receives.
func (e *End) SetupReceives(conn *rdmacm.DatagramConn) error {
	if err := e.Setup(conn); err != nil {
		return err
	}
	for range e.Count {
		r, err := conn.PostRecv(e.memory.All())
		if err != nil {
			return err
		}
		e.receives = append(e.receives, r)
	}
	return nil
}

// Send sends all messages to a peer.
func (e *End) Send(ctx context.Context, to rdmacm.Peer) error {
	for range e.Count {
		if err := e.Conn.SendImmTo(ctx, to, e.Conn.QP().Num(), e.memory.All()); err != nil {
			return err
		}
	}
	return nil
}

// Receive waits for all messages and returns the sender of the last one.
func (e *End) Receive(ctx context.Context) (from rdmacm.Peer, err error) {
	for _, r := range e.receives {
		n, err := r.Wait(ctx)
		if err != nil {
			return from, err
		}
		if from, err = r.Sender(); err != nil {
			return from, err
		}
		if imm, ok := r.Imm(); !ok || imm != from.QPNum {
			return from, fmt.Errorf("message of %d bytes from QP %d: its immediate data is %d, not the QP number", n, from.QPNum, imm)
		}
	}
	return from, nil
}
