package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// EventChannel delivers the events of the ids made on it. Waiting for them
// costs no thread. Its methods may be called concurrently; of several
// goroutines in Next, one gets each event.
//
// Somebody must read the channel: reading also drives the connections, as
// rdma_get_cm_event(3) does in C.
type EventChannel struct {
	object object.Object
	raw    *librdmacm.EventChannel
	fd     *netpoll.FD

	dispatched bool // a dispatcher reads it

	// mu is held while C reads an event, which can change the id and the state
	// of its queue pair, and guards what follows.
	mu     sync.Mutex
	ids    map[*librdmacm.CmId]*ID
	ahead  []*Event // read already, for the sake of an id that moves; they come before C's
	paused int      // how many ids are on the move, here or from here
}

// NewEventChannel makes an event channel; see rdma_create_event_channel(3).
func NewEventChannel() (*EventChannel, error) {
	ch, err := newEventChannel()
	if err != nil {
		return nil, err
	}
	ch.object.Init(ch.name())
	return ch, nil
}

// newEventChannel makes a channel whose object is to be initialised.
func newEventChannel() (*EventChannel, error) {
	raw, err := librdmacm.CreateEventChannel()
	if err != nil {
		return nil, err
	}
	ch := &EventChannel{raw: raw, ids: map[*librdmacm.CmId]*ID{}}
	if ch.fd, err = netpoll.New(int(raw.Fd), ch.name()); err != nil {
		return nil, errors.Join(err, librdmacm.DestroyEventChannel(raw))
	}
	return ch, nil
}

func (ch *EventChannel) name() string { return fmt.Sprintf("event channel %d", ch.raw.Fd) }

func (ch *EventChannel) self() *object.Object {
	if ch == nil {
		return nil
	}
	return &ch.object
}

// Next waits for an event. The event is a copy, and acknowledged. Next returns
// an error that is ctx.Err() when ctx ends, and one that is os.ErrClosed on
// Close. It holds no thread.
//
// The new id of an EventConnectRequest is the caller's to accept or to close.
// Events of an id whose Close has begun are left out.
func (ch *EventChannel) Next(ctx context.Context) (*Event, error) {
	if err := ch.self().Use(); err != nil {
		return nil, err
	}
	ch.object.Done()
	if ctx == nil {
		return nil, cerr.Nil("EventChannel.Next", "ctx")
	}
	var ev *Event
	err := ch.fd.Wait(ctx, nil, func() (ok bool, err error) {
		ev, ok, err = ch.Poll()
		return ok, err
	})
	return ev, err
}

// Poll returns an event if there is one, ok, without waiting.
func (ch *EventChannel) Poll() (ev *Event, ok bool, err error) {
	if err := ch.self().Use(); err != nil {
		return nil, false, err
	}
	defer ch.object.Done()
	ev, err = ch.read()
	return ev, ev != nil, err
}

// Events returns an iterator over what Next returns. It ends after the first
// error.
func (ch *EventChannel) Events(ctx context.Context) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		for {
			ev, err := ch.Next(ctx)
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// read takes an event off the channel, if there is one.
func (ch *EventChannel) read() (*Event, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.paused > 0 {
		return nil, nil
	}
	if len(ch.ahead) > 0 {
		ev := ch.ahead[0]
		ch.ahead = ch.ahead[1:]
		return ev, nil
	}
	return ch.readC()
}

// readC takes an event from C. The caller holds ch.mu.
func (ch *EventChannel) readC() (*Event, error) {
	for {
		raw, err := librdmacm.GetCmEvent(ch.raw)
		switch {
		case errors.Is(err, syscall.EAGAIN):
			return nil, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return nil, wrap(ch.object.Name(), err)
		}
		ev := ch.take(raw)
		// At once, so that destroying an id never waits for it.
		if err := librdmacm.AckCmEvent(raw); err != nil {
			return nil, wrap(ch.object.Name(), err)
		}
		if ev.ID != nil {
			return ev, nil
		}
	}
}

// take copies an event, with our ids in place of C's.
func (ch *EventChannel) take(raw *librdmacm.CmEvent) *Event {
	ev := copyEvent(raw)
	if raw.Event == EventConnectRequest {
		ev.ListenID = ch.ids[raw.ListenId]
		ev.ID = ch.adopt(raw.Id)
		ev.ID.request = ev
		return ev
	}
	ev.ID = ch.ids[raw.Id]
	if ev.ID != nil {
		ev.ID.note(ev.Type)
	}
	if raw.Event == EventDeviceRemoval {
		contexts.removed(raw.Id.Verbs)
	}
	return ev
}

// Close destroys the channel and wakes whoever waits for it; see
// rdma_destroy_event_channel(3). While it has ids, Close does nothing and
// returns a BusyError.
func (ch *EventChannel) Close() error {
	// Whoever waits looks again, and finds the channel closing.
	return ch.self().Close(func() { ch.fd.Kick() }, func() error {
		_ = ch.fd.Close() // a duplicate, and there is no second try
		return librdmacm.DestroyEventChannel(ch.raw)
	})
}
