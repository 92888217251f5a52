package rdmacm

import (
	"context"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
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
	if err := o.takeSlot(ctx); err != nil {
		return nil, err
	}
	op := &operation{isSend: true, finish: finish, done: make(chan struct{})}
	err := o.post(op, func(id uint64) error {
		o.send.Reset()
		if err := fill(o.send, id); err != nil {
			return err
		}
		_, err := o.queues.qp.PostSend(o.send)
		return err
	})
	if err != nil {
		<-o.slots
		return nil, err
	}
	return op, nil
}

// takeSlot waits until a send request may be posted. Completions make room, so
// it takes its turn in polling for them.
func (o *operations) takeSlot(ctx context.Context) error {
	for {
		select {
		case o.slots <- struct{}{}:
			return nil
		default:
		}
		select {
		case o.slots <- struct{}{}:
			return nil
		case o.lead <- struct{}{}:
			err := o.collect(ctx)
			<-o.lead
			if err != nil {
				return o.failure(err)
			}
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
}

func (o *operations) postRecv(segments []ibverbs.Segment) (*operation, error) {
	if err := o.queues.check(); err != nil {
		return nil, err
	}
	if err := o.takeRecvSlot(); err != nil {
		return nil, err
	}
	op := &operation{done: make(chan struct{})}
	err := o.post(op, func(id uint64) error {
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
		<-o.recvSlots
		return nil, err
	}
	return op, nil
}

// takeRecvSlot takes a place for a receive if there is one. Messages may have
// arrived that nobody has waited for yet.
func (o *operations) takeRecvSlot() error {
	for {
		select {
		case o.recvSlots <- struct{}{}:
			return nil
		default:
		}
		n, err := o.pollOnce()
		if err != nil {
			return o.failure(err)
		}
		if n == 0 {
			return fmt.Errorf("%d receives are posted, as many as Config.RecvQueue allows: %w",
				cap(o.recvSlots), syscall.ENOBUFS)
		}
	}
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

func (o *operations) post(op *operation, post func(id uint64) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed != nil {
		return o.closed
	}
	if err := o.queues.Err(); err != nil {
		return err
	}
	o.lastID++
	// Before it is posted, because the completion may be faster.
	o.pending[o.lastID] = op
	err := post(o.lastID)
	if err != nil {
		delete(o.pending, o.lastID)
	}
	return err
}
