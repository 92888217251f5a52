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

// Event is something that happened to a device, or to an object on it, without
// a request of the program's. It is a copy: C's own is acknowledged already.
type Event struct {
	Type   EventType
	Device *Device // the one that the event was read from

	// Object is what the event happened to, as Type.Class says: a *CQ, *QP,
	// *SRQ or *WQ. It may be closed by now. It is nil if it was being closed
	// already, or was not made by this package, and for ports and devices.
	Object any

	// Number tells apart what has no Object: the number of a QP, WQ or port,
	// and for a CQ or SRQ the one in its name. It is 0 for a device.
	Number uint32
}

// QP returns the queue pair that the event happened to, nil if Object is none.
func (e Event) QP() *QP {
	qp, _ := e.Object.(*QP)
	return qp
}

// CQ returns the completion queue that the event happened to, nil if Object is
// none.
func (e Event) CQ() *CQ {
	cq, _ := e.Object.(*CQ)
	return cq
}

// SRQ returns the shared receive queue that the event happened to, nil if
// Object is none.
func (e Event) SRQ() *SRQ {
	srq, _ := e.Object.(*SRQ)
	return srq
}

// WQ returns the receive work queue that the event happened to, nil if Object
// is none.
func (e Event) WQ() *WQ {
	wq, _ := e.Object.(*WQ)
	return wq
}

// Port returns the number of the port that the event happened to, 0 if it did
// not happen to a port.
func (e Event) Port() int {
	if e.Type.Class() != EventClassPort {
		return 0
	}
	return int(e.Number)
}

// String returns what happened to what, such as "QP 17 of rxe0: send queue
// drained".
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

// copyEvent copies an event that is not acknowledged yet: until then C keeps
// the object that it names.
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
	return ev
}

// EventType says what happened to a device or to an object on it.
type EventType libibverbs.EventType

// The types of events; ibv_get_async_event(3) describes each.
const (
	EventCQError           EventType = EventType(libibverbs.IBV_EVENT_CQ_ERR) // such as more completions than fit
	EventQPFatal           EventType = EventType(libibverbs.IBV_EVENT_QP_FATAL)
	EventQPRequestError    EventType = EventType(libibverbs.IBV_EVENT_QP_REQ_ERR)
	EventQPAccessError     EventType = EventType(libibverbs.IBV_EVENT_QP_ACCESS_ERR)
	EventCommEstablished   EventType = EventType(libibverbs.IBV_EVENT_COMM_EST) // a message came before the QP was ready to send
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
	EventLastWQEReached    EventType = EventType(libibverbs.IBV_EVENT_QP_LAST_WQE_REACHED) // of a QP with an SRQ
	EventClientReregister  EventType = EventType(libibverbs.IBV_EVENT_CLIENT_REREGISTER)
	EventGIDChange         EventType = EventType(libibverbs.IBV_EVENT_GID_CHANGE)
	EventWQFatal           EventType = EventType(libibverbs.IBV_EVENT_WQ_FATAL)
	EventDeviceSpeedChange EventType = EventType(libibverbs.IBV_EVENT_DEVICE_SPEED_CHANGE)
)

// String returns the text that C has for the type; see ibv_event_type_str(3).
func (t EventType) String() string { return libibverbs.EventType(t).String() }

// EventClass says what kind of thing an event happened to.
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
		return "other"
	}
	return names[c]
}

// Class returns what kind of thing the event happened to.
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

// Fatal reports whether what the event happened to can do nothing any more
// until it is reset, and mostly is to be closed and made anew. A port that is
// down is not fatal: it may come up again.
func (t EventType) Fatal() bool {
	switch t {
	case EventCQError, EventQPFatal, EventQPRequestError, EventQPAccessError, EventSRQError,
		EventWQFatal, EventDeviceFatal:
		return true
	}
	return false
}

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

// eventQueue has the events of a device of C's that were read before the program
// asked for them. All Contexts of one C object share it, as they share the
// kernel's. Who waits for the descriptor looks here first: what comes wakes all
// that wait, and one of them reads it.
type eventQueue struct {
	mu     sync.Mutex // held while events are read, so that they stay in order
	events []Event    // without their Context

	users int // Contexts; guarded by queues
}

// queues finds the queue of a C object.
var queues struct {
	sync.Mutex
	of map[*libibverbs.Context]*eventQueue
}

// shareQueue returns the queue of a C object, until leaveQueue.
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

// next returns the first event: of the queue, or else of C.
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

// fill moves the events that C has to the queue.
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

// maxEvents is how many events are kept for a program that does not ask.
const maxEvents = 1024

// add puts an event at the end, unless it is the last of its object too: a
// completion queue that has overrun may have one for each lost completion. Of too
// many events it drops the first.
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
}

// forget drops the events of an object that C has destroyed, as the kernel does.
// By then, another one may have its number.
func (q *eventQueue) forget(object any, class EventClass, number uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events = slices.DeleteFunc(q.events, func(ev Event) bool {
		return ev.Object == object || ev.Object == nil && ev.about(class, number)
	})
}

func (e Event) about(class EventClass, number uint32) bool {
	return e.Type.Class() == class && e.Number == number
}
