package rdmacm

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/ibverbs"
)

// queues are what a connection and an end for datagrams have in common: an id
// with a queue pair, memory, and the work requests under way.
type queues struct {
	kind       string // what errors call it
	dispatcher *dispatcher
	id         *ID
	pd         *ibverbs.PD
	foreignPD  bool // the user's
	channel    *ibverbs.CompChannel
	cq         *ibverbs.CQ
	qp         *ibverbs.QP
	ops        operations

	answers chan *Event   // receives the event that answers what was asked
	within  time.Duration // how long that may take; no limit if not positive
	done    chan struct{} // closed when it is over
	closer  closer
	leave   closer
	linger  time.Duration // how long the peer is told of the end after release
	untold  error         // why the peer could not be told of the end
	parting parting

	flushed    atomic.Pointer[ibverbs.WCError] // the first request of a connection that was
	wasFlushed bool                            // at the last look

	mu    sync.Mutex // guards what follows
	asks  bool       // an answer is to come
	cause error      // why it is over

	memory  sync.Mutex // guards what follows
	regions regions    // from Alloc
	closed  bool       // no more of them
}

// queueSizes are those of a config.
type queueSizes struct {
	send, recv                 int // requests
	sendSegments, recvSegments int // of one request
	inline                     int // bytes
}

// init is called with an id that has a device. The dispatcher and the id become
// the queues'. pd may be nil. failed is told of requests that fail.
func (q *queues) init(kind string, d *dispatcher, id *ID, pd *ibverbs.PD, failed func(*ibverbs.WCError)) {
	q.kind, q.dispatcher, q.id, q.pd, q.foreignPD = kind, d, id, pd, pd != nil
	q.ops.failed = failed
	q.answers, q.done = make(chan *Event, 1), make(chan struct{})
	q.parting = parting{dispatcher: d, id: id, over: make(chan struct{})}
}

// allocate makes all but the queue pair, whose config it returns.
func (q *queues) allocate(size queueSizes) (config ibverbs.QPConfig, err error) {
	if n := min(size.send, size.recv); n < 0 {
		return config, fmt.Errorf("queue with a size of %d: %w", n, syscall.EINVAL)
	}
	device, err := q.id.Context()
	if err != nil {
		return config, err
	}
	if q.pd == nil {
		if q.pd, err = device.AllocPD(); err != nil {
			return config, err
		}
	} else if q.pd.Context() != device {
		return config, fmt.Errorf("the protection domain is not of the %s's device as in Devices: %w", q.kind, syscall.EINVAL)
	}
	if q.channel, err = device.CreateCompChannel(); err != nil {
		return config, err
	}
	if q.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: size.send + size.recv, Channel: q.channel}); err != nil {
		return config, err
	}
	return ibverbs.QPConfig{
		SendCQ: q.cq, RecvCQ: q.cq, MaxSendWR: size.send, MaxRecvWR: size.recv,
		MaxSendSGE: size.sendSegments, MaxRecvSGE: size.recvSegments, MaxInline: size.inline,
	}, q.ops.init(q, size)
}

// check returns why the queues are of no use at all.
func (q *queues) check() error {
	if q == nil || q.done == nil {
		return fmt.Errorf("connection that is nil, or was not made by this package: %w", os.ErrInvalid)
	}
	return nil
}

// errClosed is the cause of what Close has ended.
func (q *queues) errClosed() error { return fmt.Errorf("%s: %w", q.kind, os.ErrClosed) }

// isAnswer reports, once, that the event that has come is what ask waits for.
func (q *queues) isAnswer() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	asks := q.asks
	q.asks = false
	return asks
}

// isAsking reports whether ask waits for an event.
func (q *queues) isAsking() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.asks
}

// ask starts something, at most once, and waits for the event that answers it.
// One that reports a failure is returned as an error.
func (q *queues) ask(ctx context.Context, start func() error) (*Event, error) {
	q.mu.Lock()
	q.asks = true
	q.mu.Unlock()
	if err := start(); err != nil {
		q.isAnswer() // none is to come
		return nil, err
	}
	var late <-chan time.Time
	if q.within > 0 {
		timer := time.NewTimer(q.within)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case ev := <-q.answers:
		return ev, ev.Err()
	case <-q.done:
		select {
		case ev := <-q.answers: // it was there, if not for long
			return ev, ev.Err()
		default:
			return nil, q.Err()
		}
	case <-ctx.Done():
		return nil, contextError(ctx)
	case <-late:
		return nil, fmt.Errorf("the peer has not answered within %v, which is Config.HandshakeTimeout: %w", q.within, syscall.ETIMEDOUT)
	}
}

// end notes why it is over, and reports whether nobody has before.
func (q *queues) end(cause error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cause != nil {
		return false
	}
	q.cause = cause
	close(q.done)
	return true
}

// fail ends it, and completes all that is posted.
func (q *queues) fail(cause error) {
	if q.end(cause) {
		background.add(q.flush)
	}
}

// flush completes all that is posted, and comes after end. The queue pair may be
// in the error state already; but a device such as Soft-RoCE does not look at
// receives that are posted there until it is put there again.
func (q *queues) flush() {
	q.ops.mu.Lock() // so that who posts has been before, or knows of the end
	defer q.ops.mu.Unlock()
	_ = q.qp.SetError() // the device may be gone
}

// look ends it if the queue pair has failed. A request that was flushed says so if
// no event has told why since the look before.
func (q *queues) look() {
	if event, failed := q.qp.Failure(); failed {
		q.fail(&QPError{Num: q.qp.Num(), Event: event})
		return
	}
	flushed := q.flushed.Load()
	if flushed == nil || q.isAsking() {
		return
	}
	if q.wasFlushed {
		q.fail(fmt.Errorf("the queue pair has failed: %w", flushed))
	}
	q.wasFlushed = true
}

// Err returns nil, or why it is over.
func (q *queues) Err() error {
	if err := q.check(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause
}

// PD returns the protection domain, to register memory with.
func (q *queues) PD() *ibverbs.PD { return q.pd }

// QP returns the queue pair, for requests that there is no method for. The IDs
// of such requests must be 1<<63 or more. Their completions are not to be had
// from here, except that a failed one is why it is over, and they must leave
// room in the queues for other requests, of which Config.KeepAlive makes some.
func (q *queues) QP() *ibverbs.QP { return q.qp }

// ID returns the id.
func (q *queues) ID() *ID { return q.id }

// Done returns a channel that is closed when it is over; Err then says why.
func (q *queues) Done() <-chan struct{} { return q.done }

// pages returns memory that begins a page. It is Go's, so that whoever still reads
// it when the connection is closed reads on.
func pages(size int) []byte {
	page := os.Getpagesize()
	b := make([]byte, size+page-1)
	past := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % uintptr(page))
	first := (page - past) % page
	return b[first : first+size : first+size]
}

// alloc registers memory until Close.
func (q *queues) alloc(size int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	q.memory.Lock() // held to the end, so that Close finds every region
	defer q.memory.Unlock()
	if q.closed {
		return nil, q.errClosed()
	}
	if size <= 0 {
		return nil, fmt.Errorf("%d bytes of memory for a %s: %w", size, q.kind, syscall.EINVAL)
	}
	mr, err := q.pd.Register(pages(size), access)
	if err != nil {
		return nil, err
	}
	q.regions.add(mr)
	return mr, nil
}

// release closes everything, in the order that C needs, and what others have on
// the protection domain after the queues. After an error it can be called again.
func (q *queues) release(others ...func() error) error {
	return q.closer.do(func() error {
		var steps []func() error
		if q.qp != nil {
			steps = append(steps, q.qp.Close)
		}
		if q.cq != nil {
			steps = append(steps, q.cq.Close, q.abortOperations)
		}
		if q.channel != nil {
			steps = append(steps, q.channel.Close)
		}
		steps = append(steps, others...)
		steps = append(steps, q.closeRegions, func() error { return q.leave.do(q.leaveID) })
		if q.pd != nil && !q.foreignPD {
			steps = append(steps, q.pd.Close)
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// leaveID closes the id, now or when the peer has been told.
func (q *queues) leaveID() error {
	if q.linger > 0 {
		return q.parting.start(q.linger)
	}
	if err := q.id.Close(); err != nil {
		return err
	}
	q.parting.end(q.untold)
	q.dispatcher.forget(q.id)
	return q.dispatcher.release()
}

func (q *queues) closeRegions() error {
	q.memory.Lock()
	defer q.memory.Unlock()
	q.closed = true
	return q.regions.close()
}

func (q *queues) abortOperations() error {
	watched.remove(&q.ops)
	q.ops.abort(q.errClosed())
	return nil
}
