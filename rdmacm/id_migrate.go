package rdmacm

import (
	"fmt"
	"slices"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Migrate makes the id's events come on another channel; see
// rdma_migrate_id(3). Those that nobody has read move with it, in order, and
// so do connection requests; but one that comes to an id that listens in the
// very moment in which it moves is lost in the kernel, and its peer gets
// EventUnreachable after a while.
//
// Migrate is refused for an id whose events this package reads itself: that of
// an Endpoint, which has a Migrate of its own, of a HandledID, or of a Conn or a
// DatagramConn.
func (id *ID) Migrate(to *EventChannel) error {
	if err := id.checkOwnEvents(); err != nil {
		return err
	}
	if err := to.self().Use(); err != nil {
		return fmt.Errorf("rdma_migrate_id: channel: %w", err)
	}
	defer to.object.Done()
	defer to.pause()()
	return id.migrate(to)
}

// checkOwnEvents refuses what would take an id away from who reads its events.
func (id *ID) checkOwnEvents() error {
	if err := id.self().Use(); err != nil {
		return err
	}
	defer id.object.Done()
	if id.channel.Load().dispatched {
		return cerr.Refuse("rdma_migrate_id", id.name(), "the id's events are read for an Endpoint, a HandledID, a Conn or a DatagramConn")
	}
	return nil
}

// migrate moves the id to a channel that is in use and paused.
func (id *ID) migrate(to *EventChannel) error {
	return id.call(func() error {
		from := id.channel.Load()
		if from == to {
			return nil
		}
		defer from.pause()()
		to.put(id) // before the first event can come there
		if err := id.migrateC(from, to); err != nil {
			to.remove(id)
			return wrap(id.object.Name(), err)
		}
		id.object.AddParent(&to.object)
		id.channel.Store(to)
		from.remove(id)
		id.object.RemoveParent(&from.object)
		id.bring(to, from.leave(id))
		return nil
	})
}

// migrateC moves C's id. C waits until the events that were read are
// acknowledged, as they are at once. Of a request that nobody has read, the
// kernel (since 5.10) moves the event but not the new id, which C then cannot
// use, and drops without a word; so everything is read before. Between
// dispatchers, which read all the time, no id moves that listens.
func (id *ID) migrateC(from, to *EventChannel) error {
	if !from.dispatched || !to.dispatched {
		if err := drain(from, to); err != nil {
			return err
		}
	}
	return librdmacm.MigrateId(id.raw, to.raw)
}

// drain reads what C has on channels that are paused.
func drain(channels ...*EventChannel) error {
	for _, ch := range channels {
		ch.mu.Lock()
		for {
			ev, err := ch.readC()
			if err != nil {
				ch.mu.Unlock()
				return err
			}
			if ev == nil {
				break
			}
			ch.ahead = append(ch.ahead, ev)
		}
		ch.mu.Unlock()
	}
	return nil
}

// bring puts events of the id that were read on another channel before those
// that come now. Connection requests bring their ids.
func (id *ID) bring(to *EventChannel, events []*Event) {
	events = slices.DeleteFunc(events, func(ev *Event) bool {
		if ev.Type != EventConnectRequest || ev.ID.migrate(to) == nil {
			return false
		}
		ev.ID.refuse() // the peer may try again
		return true
	})
	to.mu.Lock()
	defer to.mu.Unlock()
	to.ahead = append(events, to.ahead...)
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
// brings along comes before what C reads for it. The kernel wakes nobody for
// events that have moved; resume does.
func (ch *EventChannel) pause() (resume func()) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.paused++
	return func() {
		ch.mu.Lock()
		ch.paused--
		ch.mu.Unlock()
		ch.fd.Kick()
	}
}
