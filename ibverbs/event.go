// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
)

// Event is an asynchronous event: something that happened to a device or to an
// object on it, but not as the result of a work request. It is a copy; C's
// event is already acknowledged.
type Event struct {
	Type   EventType
	Device *Device // device that the event was read from

	// Object is the *CQ, *QP, *SRQ or *flow.WQ that the event happened to, as
	// Type.Class says. It may be closed by now. It is nil for ports and
	// devices, for an object that was being closed already, and for one that
	// this package did not create.
	Object EventObject

	// Number identifies what the event happened to: the number of a QP, WQ or
	// port, or the number in the name of a CQ or SRQ. It is 0 for a device.
	Number uint32
}

// EventObject is an object that events happen to: a *CQ, *QP, *SRQ or *flow.WQ.
type EventObject interface {
	// Close destroys the object.
	Close() error
}

// QP returns Object if it is a queue pair, or nil.
func (e Event) QP() *QP {
	qp, _ := e.Object.(*QP)
	return qp
}

// CQ returns Object if it is a completion queue, or nil.
func (e Event) CQ() *CQ {
	cq, _ := e.Object.(*CQ)
	return cq
}

// SRQ returns Object if it is a shared receive queue, or nil.
func (e Event) SRQ() *SRQ {
	srq, _ := e.Object.(*SRQ)
	return srq
}

// Port returns the port that the event happened to, or 0 if it did not happen
// to one.
func (e Event) Port() int {
	if e.Type.Class() != EventClassPort {
		return 0
	}
	return int(e.Number)
}

// String returns the object and what happened to it, as in "QP 17 of rxe0: send
// queue drained".
func (e Event) String() string {
	name := "a device"
	if e.Device != nil {
		name = e.Device.Name()
	}
	switch class := e.Type.Class(); class {
	case EventClassDevice:
	case EventClassPort:
		name = fmt.Sprintf("%s port %d", name, e.Number)
	case EventClassOther:
		return fmt.Sprintf("%s: event of type %d", name, uint32(e.Type))
	default:
		name = fmt.Sprintf("%s %d of %s", class, e.Number, name)
	}
	return fmt.Sprintf("%s: %s", name, e.Type)
}

// copyEvent copies an event that is not acknowledged yet. Until then, C keeps
// the object that the event names.
func (d *Device) copyEvent(raw *libibverbs.AsyncEvent) Event {
	ev := Event{Type: EventType(raw.EventType), Device: d}
	var object unsafe.Pointer
	switch ev.Type.Class() {
	case EventClassCQ:
		cq := *raw.Element.Cq()
		object, ev.Number = unsafe.Pointer(cq), cq.Handle
	case EventClassQP:
		qp := *raw.Element.Qp()
		object, ev.Number = unsafe.Pointer(qp), qp.QpNum
	case EventClassSRQ:
		srq := *raw.Element.Srq()
		object, ev.Number = unsafe.Pointer(srq), srq.Handle
	case EventClassWQ:
		wq := *raw.Element.Wq()
		object, ev.Number = unsafe.Pointer(wq), wq.WqNum
	case EventClassPort:
		ev.Number = uint32(*raw.Element.PortNum())
	}
	ev.Object = registered(object)
	if cq := ev.CQ(); cq != nil && ev.Type == EventCQError {
		cq.overran()
	}
	if qp := ev.QP(); qp != nil && ev.Type.Fatal() {
		qp.failure.CompareAndSwap(nil, &ev.Type)
	}
	if qp := ev.QP(); qp != nil && ev.Type == EventLastWQEReached {
		qp.reachedLastWQE()
	}
	return ev
}

// EventType says what happened to a device or to an object on it.
type EventType libibverbs.EventType

// The types of events; see ibv_get_async_event(3).
const (
	EventCQError           EventType = EventType(libibverbs.IBV_EVENT_CQ_ERR) // such as an overrun
	EventQPFatal           EventType = EventType(libibverbs.IBV_EVENT_QP_FATAL)
	EventQPRequestError    EventType = EventType(libibverbs.IBV_EVENT_QP_REQ_ERR)
	EventQPAccessError     EventType = EventType(libibverbs.IBV_EVENT_QP_ACCESS_ERR)
	EventCommEstablished   EventType = EventType(libibverbs.IBV_EVENT_COMM_EST) // a message arrived before the QP was ready to send
	EventSQDrained         EventType = EventType(libibverbs.IBV_EVENT_SQ_DRAINED)
	EventPathMigrated      EventType = EventType(libibverbs.IBV_EVENT_PATH_MIG)
	EventPathMigrateError  EventType = EventType(libibverbs.IBV_EVENT_PATH_MIG_ERR)
	EventDeviceFatal       EventType = EventType(libibverbs.IBV_EVENT_DEVICE_FATAL) // also when the device is removed
	EventPortActive        EventType = EventType(libibverbs.IBV_EVENT_PORT_ACTIVE)
	EventPortError         EventType = EventType(libibverbs.IBV_EVENT_PORT_ERR) // the link is down
	EventLIDChange         EventType = EventType(libibverbs.IBV_EVENT_LID_CHANGE)
	EventPKeyChange        EventType = EventType(libibverbs.IBV_EVENT_PKEY_CHANGE)
	EventSMChange          EventType = EventType(libibverbs.IBV_EVENT_SM_CHANGE)
	EventSRQError          EventType = EventType(libibverbs.IBV_EVENT_SRQ_ERR)
	EventSRQLimitReached   EventType = EventType(libibverbs.IBV_EVENT_SRQ_LIMIT_REACHED)
	EventLastWQEReached    EventType = EventType(libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED) // a QP with an SRQ takes no more receives
	EventClientReregister  EventType = EventType(libibverbs.IBV_EVENT_CLIENT_REREGISTER)
	EventGIDChange         EventType = EventType(libibverbs.IBV_EVENT_GID_CHANGE)
	EventWQFatal           EventType = EventType(libibverbs.IBV_EVENT_WQ_FATAL)
	EventDeviceSpeedChange EventType = EventType(libibverbs.IBV_EVENT_DEVICE_SPEED_CHANGE)
)

// String returns C's text for the type, and the number of a type without one;
// see ibv_event_type_str(3).
func (t EventType) String() string { return libibverbs.EventType(t).String() }

// EventClass is the kind of object that an event happened to.
type EventClass int

// The classes of events.
const (
	EventClassDevice EventClass = iota
	EventClassPort
	EventClassCQ
	EventClassQP
	EventClassSRQ
	EventClassWQ
	EventClassOther // a type that this package does not know
)

// String returns the name of the class, such as port.
func (c EventClass) String() string {
	names := [...]string{"device", "port", "CQ", "QP", "SRQ", "WQ", "other"}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprintf("EventClass(%d)", int(c))
	}
	return names[c]
}

// Class returns the kind of object that the event happened to.
func (t EventType) Class() EventClass {
	switch t {
	case EventDeviceFatal, EventDeviceSpeedChange:
		return EventClassDevice
	case EventPortActive, EventPortError, EventLIDChange, EventPKeyChange, EventSMChange,
		EventClientReregister, EventGIDChange:
		return EventClassPort
	case EventCQError:
		return EventClassCQ
	case EventQPFatal, EventQPRequestError, EventQPAccessError, EventCommEstablished, EventSQDrained,
		EventPathMigrated, EventPathMigrateError, EventLastWQEReached:
		return EventClassQP
	case EventSRQError, EventSRQLimitReached:
		return EventClassSRQ
	case EventWQFatal:
		return EventClassWQ
	}
	return EventClassOther
}

// Fatal reports whether the event disables its object until the object is
// reset. Most such objects must be closed and created again. A port error is
// not fatal: the port may come up again.
func (t EventType) Fatal() bool {
	switch t {
	case EventCQError, EventQPFatal, EventQPRequestError, EventQPAccessError, EventSRQError,
		EventWQFatal, EventDeviceFatal:
		return true
	}
	return false
}

// asyncEvents holds what a Device needs to wait for its events. Each Device has
// its own duplicate of the descriptor, even if two Devices stand for the same C
// device. In that case an event wakes the waiters of both Devices, and one of
// them gets the event. A waiter may not be woken at all if another one has read
// the event before it could run.
type asyncEvents struct {
	mu    sync.Mutex
	fd    *netpoll.FD // nil until the program reads events
	queue *eventQueue // nil until events are read

	watch *netpoll.FD // descriptor for the goroutine that reads events on its own; nil if there is none
	cqs   int         // number of completion queues that need watch
}

// NextEvent waits for an event of the device or of an object on it; see
// ibv_get_async_event(3). It occupies no OS thread. The event is already
// acknowledged, so no Close waits for the program to do that. Several
// goroutines may wait; each event goes to one of them.
//
// When ctx ends, the error matches ctx.Err(); when the device is closed, it
// matches os.ErrClosed. After EventDeviceFatal, which also reports that the
// device was removed, NextEvent may fail with an error matching syscall.EIO or
// keep waiting.
//
// A program need not read events. Unread events are kept until their object is
// closed. Consecutive equal events of one object may be merged, and only the
// last 1024 events are kept. Once a completion queue is created or NextEvent is
// called, this package reads C's events. From that time on, programs cannot use
// ibv_get_async_event(3), which also no longer blocks.
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

// PollEvent returns an event without waiting; see ibv_get_async_event(3). If
// there is none, ok is false. It returns the same errors as NextEvent.
func (d *Device) PollEvent() (ev Event, ok bool, err error) {
	if err := d.self().Use(); err != nil {
		return Event{}, false, err
	}
	defer d.object.Done()
	_, q, err := d.readEvents() // makes C's descriptor non-blocking
	if err != nil {
		return Event{}, false, err
	}
	return q.next(d)
}

// Events returns an iterator over the results of NextEvent. It ends after the
// first error: the error of ctx, os.ErrClosed, or a failure.
//
//	for ev, err := range d.Events(ctx) {
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

// readEvents returns the descriptor to wait on and the queue of events that
// were already read. Creating the descriptor makes C's own non-blocking. The
// caller has called Use on d.
func (d *Device) readEvents() (*netpoll.FD, *eventQueue, error) {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	if d.events.fd == nil {
		fd, err := d.newEventFD()
		if err != nil {
			return nil, nil, err
		}
		d.events.fd = fd
		d.events.queue.join(fd)
	}
	return d.events.fd, d.events.queue, nil
}

// newEventFD returns a new descriptor, and creates the queue if there is none.
// The caller holds events.mu.
func (d *Device) newEventFD() (*netpoll.FD, error) {
	// A Close that waits for the caller may have called stopEvents already.
	if err := d.object.Err(); err != nil {
		return nil, err
	}
	fd, err := netpoll.New(int(d.raw.AsyncFd), "events of "+d.Name())
	if err == nil && d.events.queue == nil {
		d.events.queue = shareQueue(d.raw)
	}
	return fd, err
}

// watchEvents starts reading events, until unwatchEvents. Only events report
// that a completion queue has overrun or that a queue pair has failed. If
// reading is not possible, as on a removed device, watchEvents does nothing. It
// fails if the process has no descriptor left, because no later call might try
// again. The caller has called Use on d.
func (d *Device) watchEvents() error {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	if d.events.watch == nil {
		switch fd, err := d.newEventFD(); {
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
			return err
		case err == nil:
			d.watch(fd)
		}
	}
	d.events.cqs++
	return nil
}

// watch reads events until the descriptor is closed. The caller holds
// events.mu.
func (d *Device) watch(fd *netpoll.FD) {
	q := d.events.queue
	d.events.watch = fd
	// The goroutine ends when the descriptor is closed, or after an error
	// of C, which NextEvent returns too.
	go func() {
		_ = fd.Wait(context.Background(), nil, func() (bool, error) { return false, q.fill(d) })
	}()
}

// unwatchEvents ends one watchEvents. After the last one, reading stops.
func (d *Device) unwatchEvents() {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	d.events.cqs--
	if d.events.cqs == 0 && d.events.watch != nil {
		_ = d.events.watch.Close() // watch is a duplicate; closing it cannot be retried
		d.events.watch = nil
	}
}

// forgetEvents drops the unread events of an object that was destroyed. number
// is the object's number in events.
func (d *Device) forgetEvents(object EventObject, class EventClass, number uint32) {
	d.events.mu.Lock()
	q := d.events.queue
	d.events.mu.Unlock()
	if q != nil {
		q.forget(object, class, number)
	}
}

// stopEvents ends all waits when d begins to close. If d stays open after all,
// the next wait creates a new descriptor.
func (d *Device) stopEvents() {
	d.events.mu.Lock()
	defer d.events.mu.Unlock()
	if d.events.fd != nil {
		_ = d.events.fd.Close() // fd is a duplicate; closing it cannot be retried
		d.events.queue.leave(d.events.fd)
		d.events.fd = nil
	}
	if d.events.queue != nil && d.events.watch == nil {
		leaveQueue(d.raw)
		d.events.queue = nil
	}
}

// readEvent reads, copies and acknowledges an event, if there is one.
//
// Another goroutine may close the object that the event names at any moment,
// but the object exists in C from the reading to the acknowledgement:
//
//   - If the event is read before the kernel destroys the object, ibv_destroy_*
//     waits for its acknowledgement. Otherwise, the event is never read,
//     because the kernel drops unread events.
//   - So destroying the object waits for our acknowledgement. The
//     acknowledgement always comes, because nothing before it blocks, and the
//     registry's lock is never held during a C call.
//   - Close unregisters the object before destroying it. So the lookup may miss
//     an object that is being closed, but it never finds a later object at the
//     same address.
//
// After the acknowledgement, only the Go object is left, which may be closed.
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

// eventQueue holds the events of a C device that were read before the program
// asked for them. All Devices of one C object share it, as they share the
// kernel's queue. NextEvent looks here before it waits on the descriptor. A
// goroutine that adds events here also wakes NextEvent, since the descriptor no
// longer reports them.
type eventQueue struct {
	mu      sync.Mutex           // held while events are read, to keep their order
	events  []Event              // unread events; their field Device is nil
	waiters map[*netpoll.FD]bool // descriptors on which NextEvent waits

	users int // number of Devices; guarded by queues
}

// queues maps C objects to their queues.
var queues struct {
	sync.Mutex
	of map[*libibverbs.Context]*eventQueue
}

// shareQueue returns the queue of a C object and counts a user, until
// leaveQueue.
func shareQueue(raw *libibverbs.Context) *eventQueue {
	queues.Lock()
	defer queues.Unlock()
	q := queues.of[raw]
	if q == nil {
		q = new(eventQueue)
		if queues.of == nil {
			queues.of = map[*libibverbs.Context]*eventQueue{}
		}
		queues.of[raw] = q
	}
	q.users++
	return q
}

func leaveQueue(raw *libibverbs.Context) {
	queues.Lock()
	defer queues.Unlock()
	q := queues.of[raw]
	q.users--
	if q.users == 0 {
		delete(queues.of, raw)
	}
}

// next returns the first event of the queue, or an event from C if the queue is
// empty. ok is false if C has none either.
func (q *eventQueue) next(c *Device) (ev Event, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return c.readEvent()
	}
	ev, q.events = q.events[0], q.events[1:]
	ev.Device = c
	return ev, true, nil
}

// fill moves C's events to the queue.
func (q *eventQueue) fill(c *Device) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		ev, ok, err := c.readEvent()
		if !ok || err != nil {
			return err
		}
		ev.Device = nil
		q.add(ev)
	}
}

// join makes the queue's events wake the goroutines that wait on the
// descriptor, until leave.
func (q *eventQueue) join(fd *netpoll.FD) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters == nil {
		q.waiters = map[*netpoll.FD]bool{}
	}
	q.waiters[fd] = true
}

func (q *eventQueue) leave(fd *netpoll.FD) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiters, fd)
}

// maxEvents limits the events that are kept for a program that does not read
// them.
const maxEvents = 1024

// add appends an event, unless it equals the last one of its object, because a
// completion queue that has overrun may report each lost completion. When the
// queue is full, add drops the first event. It wakes waiting goroutines.
func (q *eventQueue) add(ev Event) {
	for _, last := range slices.Backward(q.events) {
		if last == ev {
			return
		}
		if last.about(ev.Type.Class(), ev.Number) {
			break
		}
	}
	if len(q.events) == maxEvents {
		q.events = slices.Delete(q.events, 0, 1)
	}
	q.events = append(q.events, ev)
	for fd := range q.waiters {
		fd.Kick()
	}
}

// forget drops the queued events of an object that C has destroyed, as the
// kernel drops its own. It compares the number only for events without an
// object, since a new object may already have the same number.
func (q *eventQueue) forget(object EventObject, class EventClass, number uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = slices.DeleteFunc(q.events, func(ev Event) bool {
		return ev.Object == object || ev.Object == nil && ev.about(class, number)
	})
}

func (e Event) about(class EventClass, number uint32) bool {
	return e.Type.Class() == class && e.Number == number
}
