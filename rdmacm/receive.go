// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"os"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A Receive is a posted receive of a Conn or a DatagramConn.
type Receive struct {
	ops  *operations
	conn *DatagramConn // nil for a Conn
	operation
}

// PostRecv posts a receive, and does not block. Receives take messages in the
// order in which they were posted. A message goes into its receive's segments
// in order. A message that is longer than its receive ends the connection at
// both ends. At most Config.RecvQueue receives may be posted.
func (c *Conn) PostRecv(segments ...ibverbs.Segment) (*Receive, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	return c.ops.postRecv(nil, segments)
}

// Wait blocks until the message or datagram arrives and returns the number of
// its bytes in the segments. For a message of WriteImm that number is 0,
// because WriteImm writes to other memory. If ctx ends first, the receive stays
// posted, and Wait can be called again.
func (r *Receive) Wait(ctx context.Context) (int, error) {
	if r == nil || r.ops == nil {
		return 0, errNoReceive("Receive.Wait")
	}
	if _, err := r.ops.wait(ctx, &r.operation); err != nil {
		return 0, err
	}
	return r.len(), nil
}

func errNoReceive(op string) error {
	return cerr.Argument(op, "", cerr.InvalidAs(os.ErrInvalid, "the receive is nil or was not posted"))
}

// Imm returns the message's immediate data and whether the message has any.
// Call it after Wait has returned.
func (r *Receive) Imm() (uint32, bool) {
	if !r.isDone() {
		return 0, false
	}
	return r.wc.Imm()
}

// Written returns the number of bytes that the peer wrote with WriteImm, and
// whether the message came from WriteImm. Call it after Wait has returned. The
// message does not say where the bytes are, so the two programs must agree on
// that. A peer may write any number of bytes to any memory that it is allowed
// to write.
func (r *Receive) Written() (int, bool) {
	if !r.isDone() || !r.isWrite() {
		return 0, false
	}
	return r.wc.ByteLen(), true
}

// InvalidatedRKey returns the remote key of this end's memory that the message
// invalidated, and whether it invalidated one. Call it after Wait has returned.
func (r *Receive) InvalidatedRKey() (uint32, bool) {
	if !r.isDone() {
		return 0, false
	}
	return r.wc.InvalidatedRKey()
}

// Sender returns the sender of the datagram, for use with SendTo. Call it after
// Wait has returned. The QKey of the result is the QKey of this end; all queue
// pairs in the UDP port space have the same QKey unless a program has set
// another. Sender fails for a Conn, whose messages all come from its peer.
func (r *Receive) Sender() (Peer, error) {
	switch {
	case !r.isDone():
		return Peer{}, cerr.Refuse("Receive.Sender", "", "no datagram has arrived yet: call Receive.Wait first")
	case r.conn == nil:
		return Peer{}, cerr.Refuse("Receive.Sender", "", "the receive is of a Conn; its messages come from Conn.RemoteAddr")
	case r.err != nil:
		return Peer{}, r.err
	}
	wc, header := &r.wc, r.header[:]
	if err := wc.Err(); err != nil {
		return Peer{}, err
	}
	var path ibverbs.AHAttr
	known := false
	if r.conn.peer.QPNum == multicastQP {
		path, known = groupSender(r.conn.peer.Path, wc, header)
	}
	if !known {
		var err error
		if path, err = r.conn.pd.Device().AHAttrFromWC(wc, header, r.conn.port); err != nil {
			return Peer{}, err
		}
	}
	return Peer{Path: path, QPNum: wc.SrcQPNum(), QKey: r.conn.qkey}, nil
}

// isDone reports whether the receive is over: its message has arrived, or no
// message will.
func (r *Receive) isDone() bool { return r != nil && r.isOver() }

// len returns the number of bytes in the segments of a successful receive.
func (r *Receive) len() int {
	switch {
	case r.conn != nil:
		return max(r.wc.ByteLen()-ibverbs.GRHLen, 0)
	case r.isWrite():
		return 0
	}
	return r.wc.ByteLen()
}

// isWrite reports whether a WriteImm completed the receive.
func (op *operation) isWrite() bool { return op.wc.Opcode() == ibverbs.WCRecvImm }

// Recv posts a receive, waits for its message, and returns the number of bytes
// in the segments. If ctx ends first, the receive stays posted for the next
// Recv with the same segments; while it is posted, a Recv with other segments
// fails with an error matching syscall.EBUSY, so that no message is lost. To
// receive in several goroutines or to have several receives posted, use
// PostRecv or a Receiver. A message that is longer than its receive ends the
// connection at both ends.
func (c *Conn) Recv(ctx context.Context, segments ...ibverbs.Segment) (int, error) {
	if err := c.self().check(); err != nil {
		return 0, err
	}
	r, err := c.ops.receive(ctx, segments)
	if err != nil {
		return 0, err
	}
	n := r.len()
	c.ops.recycleReceive(r)
	return n, nil
}

// receive posts a receive, or takes one that is kept for the same segments, and
// returns it when its message has arrived. The caller passes it to
// recycleReceive afterwards. If ctx ends first, the receive is kept for the
// next call with the same segments.
func (o *operations) receive(ctx context.Context, segments []ibverbs.Segment) (*Receive, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	r, err := o.takeUp(segments)
	if err == nil && r == nil {
		r, err = o.postAndPoll(segments)
	}
	if err != nil {
		return nil, err
	}
	done, err := o.wait(ctx, &r.operation)
	if !done {
		o.keep(r, segments)
	}
	return r, err
}

// takeUp returns the receive that is kept for the same segments, or nil if none
// is kept. It fails if one is kept for other segments.
func (o *operations) takeUp(segments []ibverbs.Segment) (*Receive, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, kept := range o.kept {
		if slices.Equal(kept.segments, segments) {
			o.kept = slices.Delete(o.kept, i, i+1)
			return kept.receive, nil
		}
	}
	// A connection with a Pool may have messages that arrived before its
	// end.
	if err := o.over(); err != nil && (!o.intake.outlives() || len(o.kept) > 0) {
		return nil, err
	}
	if len(o.kept) > 0 {
		return nil, cerr.Argument("Recv", o.queues.name(), cerr.InvalidAs(syscall.EBUSY,
			"an earlier Recv with other segments has left its receive posted: call Recv with those segments first"))
	}
	return nil, nil
}

// keep keeps a receive for the next call of receive with the same segments.
func (o *operations) keep(r *Receive, segments []ibverbs.Segment) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, keptReceive{r, slices.Clone(segments)})
}
