package interop

import (
	"context"
	"fmt"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// exchange is our end of what C's udaddy and mckey do over one queue pair: each
// message has the number of the sender's queue pair as immediate data.
type exchange struct {
	count, size int
	memory      *ibverbs.MR
	receives    []*rdmacm.DatagramReceive
}

// setUp posts all receives.
func (x *exchange) setUp(c *rdmacm.DatagramConn) (err error) {
	if x.memory, err = c.Alloc(x.size, ibverbs.AccessLocalWrite); err != nil {
		return err
	}
	for range x.count {
		r, err := c.PostRecv(x.memory.All())
		if err != nil {
			return err
		}
		x.receives = append(x.receives, r)
	}
	return nil
}

// send sends all messages to a peer.
func (x *exchange) send(ctx context.Context, c *rdmacm.DatagramConn, to rdmacm.Peer) error {
	for range x.count {
		if err := c.SendImmTo(ctx, to, c.QP().Num(), x.memory.All()); err != nil {
			return err
		}
	}
	return nil
}

// receive receives all messages and returns their sender.
func (x *exchange) receive(ctx context.Context) (from rdmacm.Peer, err error) {
	for _, r := range x.receives {
		n, err := r.Wait(ctx)
		if err != nil {
			return from, err
		}
		if from, err = r.Sender(); err != nil {
			return from, err
		}
		if imm, ok := r.Imm(); n != x.size || !ok || imm != from.QPNum {
			return from, fmt.Errorf("message of %d bytes from QP %d with immediate data %d, %v", n, from.QPNum, imm, ok)
		}
	}
	return from, nil
}
