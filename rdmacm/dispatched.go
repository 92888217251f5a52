// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A sink takes the events of an ID. Its methods must neither block nor call C.
type sink interface {
	// Put takes an event other than a connection request.
	Put(ev *Event)

	// Lock is held while HasRoom and Adopt are called.
	sync.Locker

	// HasRoom reports whether another connection request may wait. The ID
	// listens with this backlog.
	HasRoom(backlog int) bool

	// Adopt takes the ID of a connection request, for which HasRoom has
	// returned true. ev is the EventConnectRequest. Adopt must call Start.
	Adopt(request *ID, ev *Event)
}

// dispatched passes the events of an ID from a dispatcher to the sink of
// another package. It holds one use of the dispatcher.
type dispatched struct {
	id         *ID
	dispatcher *dispatcher
	sink       sink
}

// dispatch calls create, which creates C's ID, with the channel of the shared
// dispatcher. After that, the dispatcher reads the ID's events.
func (id *ID) dispatch(create func(*EventChannel) error) error {
	d, err := useDispatcher()
	if err != nil {
		return err
	}
	if err := create(d.channel); err != nil {
		return errors.Join(err, d.release())
	}
	id.dispatched.Store(&dispatched{id: id, dispatcher: d})
	return nil
}

// bindTo returns the address to bind to before the destination is resolved.
func (a AddrInfo) bindTo() (*sockaddr, error) {
	switch {
	case a.Family == FamilyIB:
		return a.SrcIB.sockaddr(), nil
	case !a.Src.IsValid() && a.Dst.Addr().Unmap().Is4():
		return newSockaddr(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	}
	return newSockaddr(a.Src)
}

// createXRC creates C's ID for id, which is new. Its queue pair has the type t,
// for which only rdma_create_ep creates an ID, and not rdma_create_id. With
// RAI_PASSIVE, rdma_create_ep does not wait, and the ID can still connect.
func (ch *EventChannel) createXRC(id *ID, t ibverbs.QPType, src *sockaddr) error {
	if err := ch.self().Use(); err != nil {
		return err
	}
	defer ch.object.Done()
	info := &librdmacm.Addrinfo{
		AiFlags: librdmacm.RAI_PASSIVE, AiPortSpace: PortSpaceIB, AiQpType: t,
		AiSrcAddr: src.ptr(), AiSrcLen: src.size(),
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(info.AiSrcAddr)
	raw, err := librdmacm.CreateEp(info, nil, nil)
	if err != nil {
		return wrap(ch.object.Name(), err)
	}
	if err := librdmacm.MigrateId(raw, ch.raw); err != nil {
		return errors.Join(wrap(ch.object.Name(), err), librdmacm.DestroyEp(raw))
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.adopt(id, raw)
	return nil
}

// takeOver moves the ID from its event channel to a dispatcher.
func (id *ID) takeOver(to sink) error {
	if err := id.checkOwnEvents(); err != nil {
		return err
	}
	taken := &dispatched{id: id}
	if !id.dispatched.CompareAndSwap(nil, taken) {
		return cerr.Refuse("rdma_migrate_id", id.name(), "the id already belongs to an endpoint.Endpoint")
	}
	err := taken.takeOver(to)
	if err != nil {
		id.dispatched.Store(nil)
	}
	return err
}

func (d *dispatched) takeOver(to sink) error {
	use := useDispatcher
	if d.id.backlog.Load() != 0 {
		use = ownDispatcher
	}
	on, err := use()
	if err != nil {
		return err
	}
	d.dispatcher = on
	d.start(to) // before the ID's first event
	defer on.channel.hold(d.id)()
	if err := d.id.migrate(on.channel); err != nil {
		on.forget(d.id)
		return errors.Join(err, on.release())
	}
	return nil
}

// start passes the events to a sink from now on.
func (d *dispatched) start(to sink) {
	d.sink = to
	on := d.dispatcher
	on.handle(d.id, func(ev *Event) { d.handle(on, ev) })
}

// eventSettled is the type of an event that settle adds. When the dispatcher
// hands it out, all events that were read before it have been handed out. The
// handler of such an event closes the channel in Value.
const eventSettled = ^EventType(0)

// handle handles an event that the dispatcher on has read.
func (d *dispatched) handle(on *dispatcher, ev *Event) {
	switch ev.Type {
	case eventSettled:
		close(ev.Value.(chan struct{}))
	case EventConnectRequest:
		on.keep(ev.ID, d.sink, func() bool { return d.sink.HasRoom(int(d.id.backlog.Load())) }, func() {
			ev.ID.dispatched.Store(&dispatched{id: ev.ID, dispatcher: on})
			d.sink.Adopt(ev.ID, ev)
		})
	default:
		d.sink.Put(ev)
	}
}

// move moves the ID to another dispatcher, which the function use returns.
func (d *dispatched) move(use func() (*dispatcher, error)) error {
	to, err := d.dispatcher.move(d.id, use, d.handle)
	if to != nil {
		d.dispatcher = to
	}
	return err
}

// migrate moves the ID to the channel of a program. It calls unread, which
// returns events that no caller has taken, and moves these events too.
func (d *dispatched) migrate(to *EventChannel, unread func() []*Event) error {
	if err := to.self().Use(); err != nil {
		return fmt.Errorf("rdma_migrate_id: channel: %w", err)
	}
	defer to.object.Done()
	defer to.hold(d.id)()
	if err := d.id.migrate(to); err != nil {
		return err
	}
	d.settle()
	d.id.bring(to, unread())
	return nil
}

// settle waits until the dispatcher has handed out every event of the ID that
// it had read before the ID left its channel.
func (d *dispatched) settle() {
	settled := make(chan struct{})
	ch := d.dispatcher.channel
	ch.mu.Lock()
	ch.ahead = append(ch.ahead, &Event{ID: d.id, Type: eventSettled, Value: settled})
	ch.mu.Unlock()
	ch.fd.Kick()
	select {
	case <-settled:
	case <-d.dispatcher.done: // closed if the dispatcher has failed
	}
}

// release ends the use of the dispatcher.
func (d *dispatched) release() error {
	d.dispatcher.forget(d.id)
	if err := d.dispatcher.release(); err != nil {
		return err
	}
	d.id.dispatched.Store(nil)
	return nil
}
