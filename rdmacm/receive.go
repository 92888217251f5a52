package rdmacm

import (
	"context"
	"os"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Receive is a receive of a Conn or a DatagramConn that is posted.
type Receive struct {
	ops  *operations
	op   *operation
	conn *DatagramConn // nil if it is a Conn's
}

// PostRecv posts a receive: the next message that no earlier receive takes
// goes into the segments, in order. It does not wait. At most
// Config.RecvQueue receives may be posted.
func (c *Conn) PostRecv(segments ...ibverbs.Segment) (*Receive, error) {
	if err := c.self().check(); err != nil {
		return nil, err
	}
	op, err := c.ops.postRecv(segments)
	if err != nil {
		return nil, err
	}
	return &Receive{ops: &c.ops, op: op}, nil
}

// Wait waits for the message or the datagram and returns how many bytes of it are in
// the segments: 0 for WriteImm, whose bytes are elsewhere. If ctx ends earlier, the
// receive stays posted, and Wait can be called again.
func (r *Receive) Wait(ctx context.Context) (int, error) {
	if r == nil || r.op == nil {
		return 0, errNoReceive("Receive.Wait")
	}
	if _, err := r.ops.wait(ctx, r.op); err != nil {
		return 0, err
	}
	return r.len(), nil
}

func errNoReceive(op string) error {
	return cerr.Argument(op, "", cerr.InvalidAs(os.ErrInvalid, "the receive was not posted"))
}

// Imm returns the immediate data that came with the message, and whether there
// was any. It is known when Wait has returned.
func (r *Receive) Imm() (uint32, bool) {
	if !r.isDone() {
		return 0, false
	}
	return r.op.wc.Imm()
}

// Written returns how many bytes the peer has written with WriteImm, and whether
// the message was one. It is known when Wait has returned. Where the bytes are is
// for the two programs to know. A peer can write any number of bytes wherever it
// may write at all.
func (r *Receive) Written() (int, bool) {
	if !r.isDone() || !r.op.isWrite() {
		return 0, false
	}
	return r.op.wc.ByteLen(), true
}

// InvalidatedRKey returns the remote key of this end's memory that the message
// made invalid, and whether there is one. It is known when Wait has returned.
func (r *Receive) InvalidatedRKey() (uint32, bool) {
	if !r.isDone() {
		return 0, false
	}
	return r.op.wc.InvalidatedRKey()
}

// Sender returns who sent the datagram, for SendTo. It is known when Wait has
// returned. The QKey is this end's, which is that of the whole port space UDP unless a
// program has chosen another one. It fails for a Conn, whose peer has sent everything.
func (r *Receive) Sender() (Peer, error) {
	switch {
	case !r.isDone():
		return Peer{}, cerr.Refuse("Receive.Sender", "", "the datagram has not come; Wait for it first")
	case r.conn == nil:
		return Peer{}, cerr.Refuse("Receive.Sender", "", "the message is of a connection, whose peer has sent it")
	case r.op.err != nil:
		return Peer{}, r.op.err
	}
	wc, header := &r.op.wc, r.op.header[:]
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

// isDone reports whether the message is there, or will never be.
func (r *Receive) isDone() bool { return r != nil && r.op != nil && r.op.isDone() }

// len returns how many bytes a receive that has succeeded has in its segments.
func (r *Receive) len() int {
	switch {
	case r.conn != nil:
		return max(r.op.wc.ByteLen()-ibverbs.GRHLen, 0)
	case r.op.isWrite():
		return 0
	}
	return r.op.wc.ByteLen()
}

// isWrite reports whether a receive was taken by a WriteImm.
func (op *operation) isWrite() bool { return op.wc.Opcode() == ibverbs.WCRecvImm }

// Recv posts a receive, waits for its message, and returns how many bytes of it
// are in the segments. If ctx ends earlier, the receive stays posted, for the next
// Recv with the same segments; one with other segments then fails with
// syscall.EBUSY, so that no message is lost. With goroutines that receive at the
// same time, or to have more than one receive posted, use PostRecv or a Receiver.
func (c *Conn) Recv(ctx context.Context, segments ...ibverbs.Segment) (int, error) {
	if err := c.self().check(); err != nil {
		return 0, err
	}
	op, err := c.ops.receive(ctx, segments)
	if err != nil {
		return 0, err
	}
	return (&Receive{ops: &c.ops, op: op}).len(), nil
}

// receive returns a receive whose message is in the segments. One whose context
// ends is left for the next call with the same segments.
func (o *operations) receive(ctx context.Context, segments []ibverbs.Segment) (*operation, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	op, err := o.takeUp(segments)
	if err == nil && op == nil {
		op, err = o.postRecv(segments)
	}
	if err != nil {
		return nil, err
	}
	done, err := o.wait(ctx, op)
	if !done {
		o.keep(op, segments)
	}
	return op, err
}

// takeUp returns the receive that an earlier call has left with the segments, nil
// if none was left.
func (o *operations) takeUp(segments []ibverbs.Segment) (*operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, kept := range o.kept {
		if slices.Equal(kept.segments, segments) {
			o.kept = slices.Delete(o.kept, i, i+1)
			return kept.op, nil
		}
	}
	if err := o.over(); err != nil {
		return nil, err
	}
	if len(o.kept) > 0 {
		return nil, cerr.Argument("Recv", o.queues.kind, cerr.InvalidAs(syscall.EBUSY,
			"the receive of an earlier Recv is still posted, with other memory: call Recv with that memory again"))
	}
	return nil, nil
}

// keep leaves a receive for the next call with its segments.
func (o *operations) keep(op *operation, segments []ibverbs.Segment) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, keptReceive{op, slices.Clone(segments)})
}
