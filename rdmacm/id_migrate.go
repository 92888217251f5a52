package rdmacm

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Migrate makes the id's events come on another channel; see
// rdma_migrate_id(3). Those that nobody has read move with it, in order, and
// so do connection requests. It is refused for an id whose events this package
// reads itself: that of an Endpoint, which has a Migrate of its own, or of a
// Conn or a Listener.
func (id *ID) Migrate(to *EventChannel) error {
	if err := id.checkOwnEvents(); err != nil {
		return err
	}
	resume, err := to.pause()
	if err != nil {
		return err
	}
	defer resume()
	return id.migrate(to)
}

// checkOwnEvents refuses what would take an id away from who reads its events.
func (id *ID) checkOwnEvents() error {
	if err := id.self().Use(); err != nil {
		return err
	}
	defer id.object.Done()
	if id.channel.Load().dispatched {
		return fmt.Errorf("rdma_migrate_id: the id's events are read for an Endpoint, a Conn or a Listener: %w", syscall.EINVAL)
	}
	return nil
}

// migrate moves the id to a channel that is paused.
func (id *ID) migrate(to *EventChannel) error {
	return id.call(func() error {
		from := id.channel.Load()
		if from == to {
			return nil
		}
		// Known there before the first event can come. C waits until those that
		// were read here are acknowledged, as they are at once.
		to.put(id)
		if err := librdmacm.MigrateId(id.raw, to.raw); err != nil {
			to.remove(id)
			return cerr.Wrap(id.object.Name(), err)
		}
		id.object.AddParent(&to.object)
		id.channel.Store(to)
		from.remove(id)
		id.object.RemoveParent(&from.object)
		id.bring(to, from.leave(id))
		return nil
	})
}

// bring puts events of the id that were read on another channel before those
// that come now. Connection requests bring their ids.
func (id *ID) bring(to *EventChannel, events []*Event) {
	events = slices.DeleteFunc(events, func(ev *Event) bool {
		if ev.Type != EventConnectRequest || ev.ID.migrate(to) == nil {
			return false
		}
		ev.ID.drop() // the peer may try again
		return true
	})
	to.mu.Lock()
	defer to.mu.Unlock()
	to.ahead = append(to.ahead, events...)
}

func (ch *EventChannel) put(id *ID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.ids[id.raw] = id
}

func (ch *EventChannel) remove(id *ID) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.ids, id.raw)
}

// leave takes the id's events from those that come before C's.
func (ch *EventChannel) leave(id *ID) (events []*Event) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.ahead = slices.DeleteFunc(ch.ahead, func(ev *Event) bool {
		if ev.ID != id && ev.ListenID != id {
			return false
		}
		events = append(events, ev)
		return true
	})
	return events
}

// pause makes the channel's readers wait until resume, so that what an id
// brings along comes before what C reads for it.
func (ch *EventChannel) pause() (resume func(), err error) {
	if err := ch.self().Use(); err != nil {
		return nil, err
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.paused++
	return func() {
		ch.mu.Lock()
		ch.paused--
		ch.mu.Unlock()
		ch.fd.Kick()
		ch.object.Done()
	}, nil
}
