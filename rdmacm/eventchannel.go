// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/cmevent"
	"github.com/verbena-go/verbena/internal/netpoll"
	"github.com/verbena-go/verbena/internal/object"
)

// An EventChannel delivers the events of the IDs created on it. Its methods may
// be called concurrently; if several goroutines call Next, one of them gets
// each event. A goroutine that waits occupies no thread.
//
// The channel must be read: as in C, reading events with rdma_get_cm_event(3)
// also advances the connections.
type EventChannel struct {
	object object.Object
	raw    *librdmacm.EventChannel
	fd     waiter

	direct cmevent.Channel // events of a device in this process; nil: C has them

	dispatched bool // a dispatcher reads the channel

	// mu is held while C reads an event, which can change the ID and the state
	// of its queue pair. It guards the fields below.
	mu     sync.Mutex
	ids    map[*librdmacm.CmId]*ID
	ahead  []*Event        // events that were read early because an ID moves; they precede the events that C still has
	moving map[*ID]int     // IDs that are moving to or from this channel, each with the number of moves
	drains []chan struct{} // closed when C has no more events
}

// NewEventChannel creates an event channel; see rdma_create_event_channel(3).
func NewEventChannel() (*EventChannel, error) {
	ch, err := newEventChannel(false)
	if err != nil {
		return nil, err
	}
	ch.object.Init(ch.name())
	return ch, nil
}

// waiter waits for events. netpoll.FD, which waits for a descriptor, documents
// the methods.
type waiter interface {
	Wait(ctx context.Context, ready <-chan struct{}, try func() (done bool, err error)) error
	Kick()
	Close() error
}

// wakeups is a waiter that a device in this process wakes. It has room for one
// value, and only one goroutine waits, which has ended before Close.
type wakeups chan struct{}

// wake makes Wait call try again, and reports whether it was not about to.
func (w wakeups) wake() bool {
	select {
	case w <- struct{}{}:
		return true
	default:
		return false
	}
}

func (w wakeups) Wait(ctx context.Context, _ <-chan struct{}, try func() (done bool, err error)) error {
	for {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		if done, err := try(); done || err != nil {
			return err
		}
		select {
		case <-w:
		case <-ctx.Done():
		}
	}
}

func (w wakeups) Kick() { w.wake() }

func (w wakeups) Close() error { return nil }

// newEventChannel creates a channel. If a dispatcher will read it, a device in
// this process wakes the dispatcher's goroutine by itself. The caller must
// initialize the channel's object.
func newEventChannel(dispatched bool) (*EventChannel, error) {
	raw, err := librdmacm.CreateEventChannel()
	if err != nil {
		return nil, err
	}
	ch := &EventChannel{raw: raw, ids: map[*librdmacm.CmId]*ID{}, dispatched: dispatched}
	if dispatched {
		woken := make(wakeups, 1)
		if ch.direct = cmevent.Take(raw, woken.wake); ch.direct != nil {
			ch.fd = woken
			return ch, nil
		}
	}
	if ch.fd, err = netpoll.New(int(raw.Fd), ch.name()); err != nil {
		return nil, errors.Join(err, librdmacm.DestroyEventChannel(raw))
	}
	return ch, nil
}

func (ch *EventChannel) name() string {
	if ch.direct != nil { // has no descriptor
		return "event channel"
	}
	return fmt.Sprintf("event channel %d", ch.raw.Fd)
}

func (ch *EventChannel) self() *object.Object {
	if ch == nil {
		return nil
	}
	return &ch.object
}

// Next waits for an event. It returns an error matching ctx.Err() when ctx
// ends, and one matching os.ErrClosed when the channel is closed.
//
// The caller must accept or close the new ID of an EventConnectRequest. Next
// skips events of an ID that is being closed.
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

// Poll returns the next event without blocking. If there is none, ok is false.
func (ch *EventChannel) Poll() (ev *Event, ok bool, err error) {
	if err := ch.self().Use(); err != nil {
		return nil, false, err
	}
	defer ch.object.Done()
	ev, err = ch.read()
	return ev, ev != nil, err
}

// Events returns an iterator over the results of Next. It stops after the first
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

// read returns the next event, or nil if there is none. It keeps events of IDs
// that are moving.
func (ch *EventChannel) read() (*Event, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	for i, ev := range ch.ahead {
		if !ch.holds(ev) {
			ch.ahead = slices.Delete(ch.ahead, i, i+1)
			return ev, nil
		}
	}
	for {
		ev, err := ch.readC()
		switch {
		case err != nil:
			return nil, err
		case ev == nil:
			for _, drained := range ch.drains {
				close(drained)
			}
			ch.drains = nil
			return nil, nil
		case !ch.holds(ev):
			return ev, nil
		}
		ch.ahead = append(ch.ahead, ev)
	}
}

// drained returns a channel that is closed when the reader has found that C has
// no more events, after it has handled those that it read. It may have kept
// events of IDs that move.
func (ch *EventChannel) drained() <-chan struct{} {
	drained := make(chan struct{})
	ch.mu.Lock()
	ch.drains = append(ch.drains, drained)
	ch.mu.Unlock()
	ch.fd.Kick()
	return drained
}

// hold makes the channel keep the events of an ID that moves to or from it,
// until release is called. So events that move to this channel with the ID come
// before events that C reads later for the ID. The events of other IDs are
// handed out meanwhile. The kernel wakes no reader for events that have moved,
// but release does.
func (ch *EventChannel) hold(id *ID) (release func()) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.moving == nil {
		ch.moving = map[*ID]int{}
	}
	ch.moving[id]++
	return func() {
		ch.mu.Lock()
		if ch.moving[id]--; ch.moving[id] == 0 {
			delete(ch.moving, id)
		}
		ch.mu.Unlock()
		ch.fd.Kick()
	}
}

// holds reports whether the channel must keep an event. If a listener moves,
// that also holds for the events of its requests, which come after the requests
// themselves. The caller must hold ch.mu.
func (ch *EventChannel) holds(ev *Event) bool {
	if len(ch.moving) == 0 {
		return false
	}
	return ch.moving[ev.ID] > 0 || ev.ID.request != nil && ch.moving[ev.ID.request.ListenID] > 0
}

// readC reads an event from C. The caller must hold ch.mu.
func (ch *EventChannel) readC() (*Event, error) {
	if ch.direct != nil {
		return ch.readDirect(), nil
	}
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
		// Acknowledged at once, so that destroying an ID never waits
		// for it.
		if err := librdmacm.AckCmEvent(raw); err != nil {
			return nil, wrap(ch.object.Name(), err)
		}
		if ev.ID != nil {
			return ev, nil
		}
	}
}

// readDirect reads an event of a device in this process, without a call of C.
// The caller must hold ch.mu.
func (ch *EventChannel) readDirect() *Event {
	for ch.direct.Pending() {
		raw := ch.direct.Next()
		if raw == nil {
			break
		}
		ev := ch.take(raw)
		ch.direct.Ack(raw)
		if ev.ID != nil {
			return ev
		}
	}
	return nil
}

// take copies an event and replaces C's IDs with ours.
func (ch *EventChannel) take(raw *librdmacm.CmEvent) *Event {
	ev := copyEvent(raw)
	if raw.Event == EventConnectRequest {
		ev.ListenID = ch.ids[raw.ListenId]
		ev.ID = new(ID)
		ch.adopt(ev.ID, raw.Id)
		ev.ID.request = ev
		return ev
	}
	ev.ID = ch.ids[raw.Id]
	if ev.ID != nil {
		ev.ID.note(ev.Type)
	}
	if raw.Event == EventDeviceRemoval {
		opened.removed(raw.Id.Verbs)
	}
	return ev
}

// Close destroys the channel and wakes all waiting goroutines; see
// rdma_destroy_event_channel(3). If the channel still has IDs, Close does
// nothing and returns an *ibverbs.BusyError.
func (ch *EventChannel) Close() error {
	// Kick wakes the goroutines in Next, which find that the channel is
	// closing.
	return ch.self().Close(func() { ch.fd.Kick() }, func() error {
		_ = ch.fd.Close() // fd is a duplicate of C's descriptor; its error is dropped
		return librdmacm.DestroyEventChannel(ch.raw)
	})
}
