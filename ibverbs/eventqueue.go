package ibverbs

import (
	"slices"
	"sync"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

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
