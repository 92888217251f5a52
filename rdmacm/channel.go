package rdmacm

import (
	"context"
	"errors"
	"fmt"
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

	// mu is held while C reads an event, which can change a queue pair's
	// state, and while an id or a queue pair is destroyed.
	mu  sync.Mutex
	ids map[*librdmacm.CmId]*ID
}

// NewEventChannel makes an event channel; see rdma_create_event_channel(3).
func NewEventChannel() (*EventChannel, error) {
	raw, err := librdmacm.CreateEventChannel()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("event channel %d", raw.Fd)
	fd, err := netpoll.New(int(raw.Fd), name)
	if err != nil {
		return nil, errors.Join(err, librdmacm.DestroyEventChannel(raw))
	}
	ch := &EventChannel{raw: raw, fd: fd, ids: map[*librdmacm.CmId]*ID{}}
	ch.object.Init(name)
	return ch, nil
}

// Next waits for an event. The event is a copy, and acknowledged. Next returns
// an error that is ctx.Err() when ctx ends, and one that is os.ErrClosed on
// Close.
//
// The new id of an EventConnectRequest is the caller's to accept or to close.
func (ch *EventChannel) Next(ctx context.Context) (*Event, error) {
	var ev *Event
	err := ch.fd.Wait(ctx, nil, func() (bool, error) {
		var err error
		ev, err = ch.read()
		return ev != nil, err
	})
	return ev, err
}

// read takes an event off the channel, if there is one.
func (ch *EventChannel) read() (*Event, error) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	raw, err := librdmacm.GetCmEvent(ch.raw)
	for errors.Is(err, syscall.EINTR) {
		raw, err = librdmacm.GetCmEvent(ch.raw)
	}
	switch {
	case errors.Is(err, syscall.EAGAIN):
		return nil, nil
	case err != nil:
		return nil, cerr.Wrap(ch.object.Name(), err)
	}
	ev := copyEvent(raw)
	ev.ID = ch.ids[raw.Id]
	if raw.Event == EventConnectRequest {
		ev.ListenID = ch.ids[raw.ListenId]
		ev.ID = ch.adopt(raw.Id)
		ev.ID.request = ev
	}
	// At once, so that destroying an id never waits for it.
	if err := librdmacm.AckCmEvent(raw); err != nil {
		return nil, cerr.Wrap(ch.object.Name(), err)
	}
	return ev, nil
}

// Close destroys the channel and wakes whoever waits for it; see
// rdma_destroy_event_channel(3). While it has ids, Close does nothing and
// returns a BusyError.
func (ch *EventChannel) Close() error {
	return ch.object.Close(nil, func() error {
		if err := ch.fd.Close(); err != nil {
			return err
		}
		return librdmacm.DestroyEventChannel(ch.raw)
	})
}
