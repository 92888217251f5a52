package ibverbs

import (
	"context"
	"errors"
	"iter"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
)

// asyncEvents is a Context's way to wait for the events of its device. Each
// Context has a descriptor of its own, a duplicate, also if two stand for one
// device of C's: an event wakes the waiters of both, and one of them gets it.
type asyncEvents struct {
	mu    sync.Mutex
	fd    *netpoll.FD // nil until somebody asks for events
	queue *eventQueue // nil until events are read

	watch *netpoll.FD // of the goroutine that reads what nobody asks for; nil: there is none
	cqs   int         // completion queues that need it
}

// NextEvent waits for an event of the device and of the objects on it; see
// ibv_get_async_event(3). The event is acknowledged, so no Close ever waits for
// the program. Several goroutines may wait, and one gets each event; that is so
// too for the Contexts of one device that ContextFromRaw made of the same C
// object. It holds no thread.
//
// NextEvent returns an error that is ctx.Err() when ctx ends, and one that is
// os.ErrClosed on Close. After EventDeviceFatal, which also says that the device
// was removed, it may return syscall.EIO, or wait on.
//
// Nobody needs to read events: they are kept until then, and dropped when their
// object is closed. Of several that say the same of one object, one after the
// other, one may be kept; of more than 1024 events the last ones are. From the
// first completion queue on, and from the first call on, this package reads the
// events that C has, so that programs cannot read them with
// ibv_get_async_event(3), which no longer blocks either.
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	if err := d.self().Use(); err != nil {
		return Event{}, err
	}
	defer d.object.Done()
	if ctx == nil {
		return Event{}, cerr.Nil("Device.NextEvent", "ctx")
	}
	fd, q, err := d.readEvents()
	if err != nil {
		return Event{}, err
	}
	var ev Event
	err = fd.Wait(ctx, nil, func() (ok bool, err error) {
		ev, ok, err = q.next(d)
		return ok, err
	})
	return ev, err
}

// PollEvent returns an event if there is one, ok, without waiting; its errors
// are those of NextEvent. See ibv_get_async_event(3).
func (d *Device) PollEvent() (ev Event, ok bool, err error) {
	if err := d.self().Use(); err != nil {
		return Event{}, false, err
	}
	defer d.object.Done()
	_, q, err := d.readEvents() // which makes reading not block
	if err != nil {
		return Event{}, false, err
	}
	return q.next(d)
}

// Events returns an iterator over what NextEvent returns. It ends after the
// first error, which is that of ctx, os.ErrClosed, or a failure:
//
//	for ev, err := range c.Events(ctx) {
//		if err != nil {
//			return err
//		}
//		log.Print(ev)
//	}
func (d *Device) Events(ctx context.Context) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			ev, err := d.NextEvent(ctx)
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// readEvents returns the descriptor to wait on and the queue to look into. The
// caller uses c. Making the descriptor switches C's own to non-blocking mode.
func (d *Device) readEvents() (*netpoll.FD, *eventQueue, error) {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	if d.events.fd == nil {
		fd, err := d.newEventFD()
		if err != nil {
			return nil, nil, err
		}
		d.events.fd = fd
	}
	return d.events.fd, d.events.queue, nil
}

// newEventFD is called with events.mu held, and sees to it that there is a queue.
func (d *Device) newEventFD() (*netpoll.FD, error) {
	// stopEvents may have run already, and a Close waits for the caller.
	if err := d.object.Err(); err != nil {
		return nil, err
	}
	fd, err := netpoll.New(int(d.raw.AsyncFd), "events of "+d.Name())
	if err == nil && d.events.queue == nil {
		d.events.queue = shareQueue(d.raw)
	}
	return fd, err
}

// watchEvents has the events read until unwatchEvents, because a completion queue
// learns only from them that it has overrun, and a queue pair that it has failed. If that cannot be, as on a device
// that is gone, the queue goes without. The caller uses c.
func (d *Device) watchEvents() {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	d.events.cqs++
	if d.events.watch != nil {
		return
	}
	fd, err := d.newEventFD()
	if err != nil {
		return
	}
	q := d.events.queue
	d.events.watch = fd
	// It ends with the descriptor, or with a failure of C's, which whoever asks for
	// events meets too.
	go func() {
		_ = fd.Wait(context.Background(), nil, func() (bool, error) { return false, q.fill(d) })
	}()
}

// unwatchEvents ends what watchEvents began.
func (d *Device) unwatchEvents() {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	d.events.cqs--
	if d.events.cqs == 0 && d.events.watch != nil {
		_ = d.events.watch.Close() // a duplicate, and there is no second try
		d.events.watch = nil
	}
}

// forgetEvents drops the events of an object that was destroyed.
func (d *Device) forgetEvents(object any, class EventClass, number uint32) {
	d.events.mu.Lock()
	q := d.events.queue
	d.events.mu.Unlock()
	if q != nil {
		q.forget(object, class, number)
	}
}

// stopEvents ends all waits, when c has begun to close. If c turns out to be
// needed still, the next wait makes a new descriptor.
func (d *Device) stopEvents() {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	if d.events.fd != nil {
		_ = d.events.fd.Close() // a duplicate, and there is no second try
		d.events.fd = nil
	}
	if d.events.queue != nil && d.events.watch == nil {
		leaveQueue(d.raw)
		d.events.queue = nil
	}
}

// readEvent reads, copies and acknowledges an event, if there is one.
//
// The object that it names may be closed by another goroutine at any moment,
// and yet exists in C all the time from the reading to the acknowledgement:
//
//   - An event is read either before the kernel destroys the object, and then
//     counts among those that ibv_destroy_* waits for, or never: the kernel
//     drops what is unread.
//   - So whoever destroys the object waits for our acknowledgement, which
//     nothing in between can keep from coming: nothing blocks, and the
//     registry's lock is never held during a call of C.
//   - Close unregisters the object before it is destroyed. The look-up may
//     therefore miss an object that is being closed, but what it finds is the
//     one that the event names, never a later one at the same address.
//
// After the acknowledgement only the Go object is left, which may be closed.
func (d *Device) readEvent() (ev Event, ok bool, err error) {
	var raw libibverbs.AsyncEvent
	err = libibverbs.GetAsyncEvent(d.raw, &raw)
	for errors.Is(err, syscall.EINTR) {
		err = libibverbs.GetAsyncEvent(d.raw, &raw)
	}
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return Event{}, false, nil
	case err != nil:
		return Event{}, false, wrap(d.Name(), err)
	}
	ev = d.copyEvent(&raw)
	if err := libibverbs.AckAsyncEvent(&raw); err != nil {
		return Event{}, false, wrap(d.Name(), err)
	}
	return ev, true, nil
}
