package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// CQ is a completion queue. Its methods may be called concurrently; several
// goroutines may wait, and one gets each completion.
type CQ struct {
	object  object.Object
	context *Context
	channel *CompChannel // nil: no events
	raw     *libibverbs.Cq

	// What Wait found when it looked is kept for the next Poll. The lock is
	// held while polling, so that nobody gets a later completion before these.
	mu    sync.Mutex
	found []WC

	turn  chan struct{} // full while a goroutine waits
	ready chan struct{} // receives when another queue's waiter read our event
	try   func() (bool, error)
}

// CQConfig says how to make a completion queue.
type CQConfig struct {
	Entries int          // at least; the queue must never hold more completions
	Channel *CompChannel // for Wait; nil: the queue can only be polled
	Vector  int          // interrupt vector, below the device's number of them
}

// foundMax is how many completions Wait takes at once.
const foundMax = 16

// CreateCQ makes a completion queue; see ibv_create_cq(3).
func (c *Context) CreateCQ(config CQConfig) (*CQ, error) {
	parents := []*object.Object{c.self()}
	var channel *libibverbs.CompChannel
	if config.Channel != nil {
		parents = append(parents, &config.Channel.object)
		channel = config.Channel.raw
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if config.Channel != nil && config.Channel.context.raw != c.raw {
		return nil, fmt.Errorf("CQ of %s with a %s: not the same open device: %w",
			c.Name(), config.Channel.object.Name(), syscall.EINVAL)
	}
	if config.Entries < 1 || config.Entries > math.MaxInt32 || config.Vector < 0 || config.Vector > math.MaxInt32 {
		return nil, &cerr.Error{
			Op: "ibv_create_cq", Errno: syscall.EINVAL,
			Object: fmt.Sprintf("%d entries on vector %d of %s", config.Entries, config.Vector, c.Name()),
		}
	}
	raw, err := libibverbs.CreateCq(c.raw, int32(config.Entries), nil, channel, int32(config.Vector))
	if err != nil {
		return nil, cerr.Wrap(fmt.Sprintf("%d entries on %s", config.Entries, c.Name()), err)
	}
	cq := &CQ{
		context: c, channel: config.Channel, raw: raw,
		turn: make(chan struct{}, 1), ready: make(chan struct{}, 1),
		found: make([]WC, 0, foundMax),
	}
	if cq.channel != nil {
		cq.try = func() (bool, error) { return cq.channel.read(cq) }
		cq.channel.add(cq)
	}
	cq.object.Init(fmt.Sprintf("CQ %d of %s", raw.Handle, c.Name()), parents...)
	register(unsafe.Pointer(raw), cq)
	return cq, nil
}

// Len returns how many completions the queue can hold.
func (cq *CQ) Len() int { return int(cq.raw.Cqe) }

// Raw returns the C object, which is valid until Close.
func (cq *CQ) Raw() *libibverbs.Cq { return cq.raw }

// Poll takes up to len(wcs) completions and returns how many, without waiting;
// see ibv_poll_cq(3). A failed work request is not an error of Poll, but in
// its WC.
func (cq *CQ) Poll(wcs []WC) (int, error) {
	if err := cq.self().Use(); err != nil {
		return 0, err
	}
	defer cq.object.Done()
	if cq.channel == nil {
		return cq.poll(wcs)
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	taken := copy(wcs, cq.found)
	cq.found = cq.found[:copy(cq.found, cq.found[taken:])]
	n, err := cq.poll(wcs[taken:])
	if taken > 0 {
		err = nil // these must not be lost; the next Poll meets the error again
	}
	return taken + n, err
}

func (cq *CQ) poll(wcs []WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	n, err := libibverbs.PollCq(cq.raw, int32(min(len(wcs), math.MaxInt32)), (*libibverbs.Wc)(unsafe.Pointer(unsafe.SliceData(wcs))))
	if err != nil {
		return 0, cerr.Wrap(cq.object.Name(), err)
	}
	return n, nil
}

// look polls and keeps what it finds for Poll.
func (cq *CQ) look() (found bool, err error) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if len(cq.found) > 0 {
		return true, nil
	}
	n, err := cq.poll(cq.found[:foundMax])
	cq.found = cq.found[:n]
	return n > 0, err
}

// errNoChannel is returned by Wait on a queue that was made to be polled.
var errNoChannel = errors.New("made without a completion channel")

// Wait returns when the queue has completions, which Poll then returns, unless
// another goroutine takes them first. It returns an error that is ctx.Err()
// when ctx ends, and one that is os.ErrClosed on Close, which may be one that C
// then refuses. It holds no thread.
func (cq *CQ) Wait(ctx context.Context) error {
	if err := cq.self().Use(); err != nil {
		return err
	}
	cq.object.Done()
	if ctx == nil {
		return cerr.Nil("Wait", "ctx")
	}
	if cq.channel == nil {
		return fmt.Errorf("wait for %s: %w", cq.object.Name(), errNoChannel)
	}
	select {
	case cq.turn <- struct{}{}: // even with a ctx that is done: completions win
	default:
		select {
		case cq.turn <- struct{}{}:
		case <-ctx.Done():
			return netpoll.ContextError(ctx)
		}
	}
	defer func() { <-cq.turn }()
	for {
		found, err := cq.armAndLook()
		if found || err != nil {
			return err
		}
		if err := cq.channel.fd.Wait(ctx, cq.ready, cq.try); err != nil {
			return err
		}
	}
}

// armAndLook asks for an event and then looks, in this order, so that a
// completion which arrives in between is not missed.
func (cq *CQ) armAndLook() (found bool, err error) {
	if err := cq.self().Use(); err != nil {
		return false, err
	}
	defer cq.object.Done()
	if found, err := cq.look(); found || err != nil {
		return found, err
	}
	if err := libibverbs.ReqNotifyCq(cq.raw, 0); err != nil {
		return false, cerr.Wrap(cq.object.Name(), err)
	}
	return cq.look()
}

func (cq *CQ) signal() {
	select {
	case cq.ready <- struct{}{}:
	default:
	}
}

// Close destroys the queue and wakes whoever waits for it; see
// ibv_destroy_cq(3). While queue pairs use it, Close does nothing and returns
// a BusyError.
func (cq *CQ) Close() error {
	return cq.self().Close(cq.interrupt, func() error {
		if cq.channel != nil {
			// Before it is destroyed, because the next one may have its address.
			cq.channel.remove(cq)
		}
		unregister(unsafe.Pointer(cq.raw))
		if err := cq.context.unlessRemoved(libibverbs.DestroyCq(cq.raw)); err != nil {
			register(unsafe.Pointer(cq.raw), cq)
			if cq.channel != nil {
				cq.channel.add(cq)
			}
			return cerr.Wrap(cq.object.Name(), err)
		}
		return nil
	})
}

// interrupt ends the wait of the goroutine that has the turn; those behind it
// see the queue closing when they get theirs.
func (cq *CQ) interrupt() {
	if cq.channel == nil {
		return
	}
	cq.signal()
	cq.channel.fd.Kick()
	cq.turn <- struct{}{}
	<-cq.turn
}
