package rdmacm

import (
	"context"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// postSend posts the request that fill adds to an empty batch. It waits for
// room in the send queue. If it succeeds, finish, which may be nil, is called
// when the request is done with.
func (o *operations) postSend(
	ctx context.Context, fill func(b *ibverbs.SendBatch, id uint64) error, finish func(),
) (*operation, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, contextError(ctx)
	}
	op := &operation{isSend: true, finish: finish, done: make(chan struct{})}
	for {
		turn, err := o.trySend(op, fill)
		if err != nil {
			return nil, err
		}
		if turn == nil {
			return op, nil
		}
		if err := o.waitForRoom(ctx, turn); err != nil {
			return nil, err
		}
	}
}

// trySend posts the request, or returns the caller's turn to try again.
func (o *operations) trySend(op *operation, fill func(b *ibverbs.SendBatch, id uint64) error) (turn chan struct{}, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over(); err != nil {
		o.sends.wakeAll() // to learn of it too
		return nil, err
	}
	if o.sends.isFull() {
		return o.sends.wait(), nil
	}
	err = o.post(op, &o.sends, func(id uint64) error {
		o.send.Reset()
		if err := fill(o.send, id); err != nil {
			return err
		}
		_, err := o.queues.qp.PostSend(o.send)
		return err
	})
	if err != nil {
		o.sends.wakeNext() // the caller may have been told of room that it does not use
	}
	return nil, err
}

// waitForRoom waits until a send request may be posted. Completions make room, so
// the caller takes its turn in polling for them.
func (o *operations) waitForRoom(ctx context.Context, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	default:
	}
	var err error
	select {
	case <-turn:
		return nil
	case o.lead <- struct{}{}:
		// The leader before may have made room, so that none is to come.
		if o.isFull() {
			err = o.collect(ctx)
		}
		<-o.lead
		if err != nil {
			err = o.failure(err)
		}
	case <-o.queues.done:
	case <-ctx.Done():
		err = contextError(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sends.leave(turn)
	return err
}

func (o *operations) isFull() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sends.isFull()
}

func (o *operations) postRecv(segments []ibverbs.Segment) (*operation, error) {
	if err := o.queues.check(); err != nil {
		return nil, err
	}
	for {
		op, err := o.tryRecv(segments)
		if op != nil || err != nil {
			return op, err
		}
		// Messages may have arrived that nobody has waited for yet.
		n, err := o.pollOnce()
		if err != nil {
			return nil, o.failure(err)
		}
		if n == 0 {
			return nil, cerr.Argument("ibv_post_recv", o.queues.kind, cerr.InvalidAs(syscall.ENOBUFS,
				"%d receives are posted, as many as Config.RecvQueue allows", o.recvs.size))
		}
	}
}

// tryRecv posts a receive, or returns nil if there is no room.
func (o *operations) tryRecv(segments []ibverbs.Segment) (*operation, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over(); err != nil {
		return nil, err
	}
	if o.recvs.isFull() {
		return nil, nil
	}
	op := &operation{done: make(chan struct{})}
	err := o.post(op, &o.recvs, func(id uint64) error {
		o.recv.Reset()
		if o.headers != nil {
			segments = o.headers.add(op, segments)
		}
		err := o.recv.Recv(id, segments...)
		if err == nil {
			_, err = o.queues.qp.PostRecv(o.recv)
		}
		if err != nil && o.headers != nil {
			o.headers.take(op)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return op, nil
}

// receivesNothing returns nil, or why there is no room for all receives that can be
// posted.
func (o *operations) receivesNothing() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.over(); err != nil {
		return err
	}
	if o.recvs.used > 0 {
		return cerr.Argument("NewReceiver", o.queues.kind, cerr.InvalidAs(syscall.ENOBUFS, "%d receives are posted already", o.recvs.used))
	}
	return nil
}

// pollOnce hands out what completions there are, unless somebody else is doing
// so.
func (o *operations) pollOnce() (int, error) {
	select {
	case o.lead <- struct{}{}:
		defer func() { <-o.lead }()
		return o.poll()
	default:
		return 0, nil
	}
}

// over returns nil, or why nothing can be posted any more.
func (o *operations) over() error {
	if o.closed != nil {
		return o.closed
	}
	return o.queues.Err()
}

// post posts a request for which there is room. The caller holds o.mu.
func (o *operations) post(op *operation, r *room, post func(id uint64) error) error {
	o.lastID++
	// Before it is posted, because the completion may be faster.
	o.pending[o.lastID] = op
	if err := post(o.lastID); err != nil {
		delete(o.pending, o.lastID)
		return err
	}
	r.used++
	return nil
}
