package rdmacm

import (
	"context"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Send sends a datagram made of the segments to the peer, or to the group's
// members. It fails with syscall.EMSGSIZE if they have more than MTU bytes, and
// with syscall.EDESTADDRREQ on an accepted end.
func (c *DatagramConn) Send(ctx context.Context, segments ...ibverbs.Segment) error {
	return c.toPeer(ctx, segments, sendTo)
}

// SendImm is Send with 32 bits of immediate data.
func (c *DatagramConn) SendImm(ctx context.Context, imm uint32, segments ...ibverbs.Segment) error {
	return c.toPeer(ctx, segments, sendImmTo(imm))
}

// SendTo is Send to somebody else, such as the sender of a datagram. The first
// time that it takes a path, it may wait while the kernel looks for the other
// end's hardware address, for up to three seconds. If nobody answers, it fails
// with syscall.ETIMEDOUT, and does so at once for the next three seconds. Eight
// ends are looked for at a time, and 64 more may wait for that; with still more
// of them, SendTo fails with syscall.ENOBUFS. Paths that are known do not wait.
func (c *DatagramConn) SendTo(ctx context.Context, to Peer, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, to, segments, sendTo)
}

// SendImmTo is SendTo with 32 bits of immediate data.
func (c *DatagramConn) SendImmTo(ctx context.Context, to Peer, imm uint32, segments ...ibverbs.Segment) error {
	return c.transfer(ctx, to, segments, sendImmTo(imm))
}

// add adds a datagram to a batch.
type add func(b *ibverbs.SendBatch, id uint64, to ibverbs.Destination, flags ibverbs.SendFlags, segments []ibverbs.Segment) error

func sendTo(b *ibverbs.SendBatch, id uint64, to ibverbs.Destination, flags ibverbs.SendFlags, segments []ibverbs.Segment) error {
	return b.SendTo(id, to, flags, segments...)
}

func sendImmTo(imm uint32) add {
	return func(b *ibverbs.SendBatch, id uint64, to ibverbs.Destination, flags ibverbs.SendFlags, segments []ibverbs.Segment) error {
		return b.SendImmTo(id, to, imm, flags, segments...)
	}
}

func (c *DatagramConn) toPeer(ctx context.Context, segments []ibverbs.Segment, add add) error {
	if err := c.Err(); err != nil {
		return err
	}
	if c.peer == (Peer{}) {
		return errNoPeer()
	}
	return c.transfer(ctx, c.peer, segments, add)
}

func (c *DatagramConn) transfer(ctx context.Context, to Peer, segments []ibverbs.Segment, add add) error {
	if err := c.Err(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("DatagramConn.Send", "ctx")
	}
	size := 0
	for _, s := range segments {
		size += s.Len()
	}
	if size > c.mtu {
		return cerr.Argument("DatagramConn.Send", "", cerr.InvalidAs(syscall.EMSGSIZE, "datagram of %d bytes, where the port's MTU allows %d", size, c.mtu))
	}
	h, err := c.handles.get(ctx, to.Path)
	if err != nil {
		return err
	}
	d := ibverbs.Destination{AH: h.ah, QPNum: to.QPNum, QKey: to.QKey}
	flags := c.ops.sendFlags(segments)
	op, err := c.ops.postSend(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		return add(b, id, d, flags, segments)
	}, func() { c.handles.put(h) })
	if err != nil {
		c.handles.put(h)
		return err
	}
	return (&Transfer{&c.ops, op}).Wait(ctx)
}

// PostRecv posts a receive: the next datagram that no earlier receive takes
// goes into the segments, in order, without the header that C puts before it. It
// does not wait. At most DatagramConfig.RecvQueue receives may be posted.
//
// Receives should have MTU bytes: a datagram that is larger than its receive is
// lost, and with many devices ends the DatagramConn.
func (c *DatagramConn) PostRecv(segments ...ibverbs.Segment) (*Receive, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	op, err := c.ops.postRecv(segments)
	if err != nil {
		return nil, err
	}
	return &Receive{&c.ops, op, c}, nil
}

// Recv posts a receive, waits for its datagram, and returns its length in bytes
// and its sender. If ctx ends earlier, the receive stays posted, as that of
// Conn.Recv does.
func (c *DatagramConn) Recv(ctx context.Context, segments ...ibverbs.Segment) (int, Peer, error) {
	if err := c.self().check(); err != nil {
		return 0, Peer{}, err
	}
	op, err := c.ops.receive(ctx, segments)
	if err != nil {
		return 0, Peer{}, err
	}
	r := &Receive{&c.ops, op, c}
	from, err := r.Sender()
	return r.len(), from, err
}
