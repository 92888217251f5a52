// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// CompChannel delivers the events of the completion queues created with it.
// Waiting for events occupies no OS thread. Several queues may share a channel.
// If they do, an event of one queue also costs time for goroutines that wait
// for the other queues. Its methods may be called concurrently.
type CompChannel struct {
	object object.Object
	device *Device
	raw    *libibverbs.CompChannel

	mu     sync.Mutex
	cqs    map[*libibverbs.Cq]*CQ
	queues atomic.Int32 // number of entries in cqs

	// fd is the descriptor that waiting goroutines park on. It is nil
	// before the first wait that parks, and while waits sleep in C instead
	// (see waitPolicy). While the netpoller watches the descriptor, each event
	// wakes a thread of the runtime, even during CQ.Sleep.
	fd        *netpoll.FD
	lacksFD   atomic.Bool // whether C's channel has no descriptor yet
	beginning sync.Mutex  // guards fd, and the making of C's descriptor
}

// CreateCompChannel creates a completion channel; see
// ibv_create_comp_channel(3).
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	ch := &CompChannel{device: d, raw: datapath.NewChannel(d.raw), cqs: map[*libibverbs.Cq]*CQ{}}
	ch.lacksFD.Store(ch.raw != nil)
	if ch.raw == nil {
		var err error
		if ch.raw, err = libibverbs.CreateCompChannel(d.raw); err != nil {
			return nil, wrap(d.Name(), err)
		}
		if err := netpoll.SetNonblock(int(ch.raw.Fd)); err != nil {
			return nil, errors.Join(fmt.Errorf("completion channel of %s: %w", d.Name(), err), libibverbs.DestroyCompChannel(ch.raw))
		}
	}
	ch.object.Init("completion channel of "+d.Name(), &d.object)
	return ch, nil
}

// open makes the descriptor if the channel has none. On the device in user
// space, waits need none. The caller keeps the channel open.
func (ch *CompChannel) open() error {
	if !ch.lacksFD.Load() {
		return nil
	}
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	if !ch.lacksFD.Load() {
		return nil
	}
	if errno := datapath.OpenChannel(ch.raw); errno != 0 {
		return wrap(ch.object.Name(), cerr.Null("ibv_create_comp_channel", int32(errno)))
	}
	if err := netpoll.SetNonblock(int(ch.raw.Fd)); err != nil {
		return fmt.Errorf("%s: %w", ch.object.Name(), err)
	}
	ch.lacksFD.Store(false)
	return nil
}

// Raw returns the C object, which is valid until Close. Its descriptor is
// non-blocking. On the device in user space, the first call of Raw, or of Raw
// or Sleep of a queue with this channel, makes the descriptor. It is -1 before
// that, or if the process may open no more files.
func (ch *CompChannel) Raw() *libibverbs.CompChannel {
	if ch.lacksFD.Load() && ch.object.Use() == nil { // after Close, raw may be that of another channel
		_ = ch.open()
		ch.object.Done()
	}
	return ch.raw
}

// Close destroys the channel; see ibv_destroy_comp_channel(3). While completion
// queues use it, Close does nothing and returns a *BusyError.
func (ch *CompChannel) Close() error {
	return ch.self().Close(nil, func() error {
		// No goroutine waits on fd, since the channel has no queues. If
		// C fails, because of a queue that only C knows, fd is still
		// needed.
		if err := ch.destroy(); err != nil {
			return wrap(ch.object.Name(), err)
		}
		if ch.fd != nil {
			_ = ch.fd.Close() // fd is a duplicate; closing it cannot be retried
		}
		return nil
	})
}

func (ch *CompChannel) destroy() error {
	err := libibverbs.DestroyCompChannel(ch.raw)
	if errors.Is(err, syscall.EBUSY) && ch.device.isRemoved() {
		if ch.lacksFD.Load() {
			return nil
		}
		// C still counts the queues that it leaks, so it keeps the descriptor.
		return os.NewFile(uintptr(ch.raw.Fd), ch.object.Name()).Close()
	}
	return err
}

func (ch *CompChannel) add(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.cqs[cq.raw] = cq
	ch.queues.Store(int32(len(ch.cqs)))
}

func (ch *CompChannel) remove(cq *CQ) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.cqs, cq.raw)
	ch.queues.Store(int32(len(ch.cqs)))
}

// isOnly reports whether the channel has exactly one queue.
func (ch *CompChannel) isOnly() bool { return ch.queues.Load() == 1 }

// waiter returns the descriptor to wait on, which it creates if there is none.
func (ch *CompChannel) waiter() (fd *netpoll.FD, err error) {
	if err := ch.open(); err != nil {
		return nil, err
	}
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	if ch.fd == nil {
		ch.fd, err = netpoll.New(int(ch.raw.Fd), ch.object.Name())
	}
	return ch.fd, err
}

// unwatch makes the netpoller stop watching the descriptor until a wait parks
// again. It has no effect if the channel has several queues. The caller has
// filled the turn of one of the queues; if that is the only queue, no goroutine
// waits on the descriptor.
func (ch *CompChannel) unwatch() {
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	if ch.fd != nil && ch.isOnly() {
		_ = ch.fd.Close() // fd is a duplicate
		ch.fd = nil
	}
}

// wake makes a goroutine that waits for the queue poll it again.
func (ch *CompChannel) wake(cq *CQ) {
	cq.signal()
	if cq.wakes { // its waits receive from ready
		return
	}
	ch.beginning.Lock()
	defer ch.beginning.Unlock()
	if ch.fd != nil { // if fd is nil, no goroutine is parked, and the next wait of the queue receives from ready
		ch.fd.Kick()
	}
}

// of returns the open queue that an event names, or nil if it was closed.
func (ch *CompChannel) of(raw *libibverbs.Cq) *CQ {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.cqs[raw]
}

// read takes events off the channel until none is left, or until it has found
// one for the wanted queue and the channel has no other queue. done reports
// whether it has found one. Events that it leaves are found by the next wait,
// which calls read before it parks. Only one goroutine calls read at a time.
// The channel is not destroyed during the call, because the queue keeps it
// open.
func (ch *CompChannel) read(wanted *CQ) (done bool, err error) {
	for {
		var p datapath.Polled
		datapath.TakeEvent(ch.raw, &p)
		switch {
		case p.Value == 0:
		case syscall.Errno(p.Errno) == syscall.EAGAIN:
			return done, nil
		case syscall.Errno(p.Errno) == syscall.EINTR:
			continue
		default:
			return false, wrap(ch.object.Name(), cerr.Status("ibv_get_cq_event", p.Value, p.Errno))
		}
		switch cq := ch.of((*libibverbs.Cq)(p.Other)); {
		case cq == wanted:
			done = true
			if ch.isOnly() {
				return true, nil
			}
		case cq != nil:
			cq.signal()
		}
	}
}
