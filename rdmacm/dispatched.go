// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/internal/cerr"
)

// dispatched is an ID whose events a dispatcher passes to another package. It
// holds one use of the dispatcher.
type dispatched struct {
	id         *ID
	dispatcher *dispatcher
	sink       bridge.Sink
}

// newDispatched creates an ID on the shared dispatcher.
func newDispatched(ps PortSpace) (bridge.DispatchedID, error) {
	d, id, err := newDispatchedID(ps, useDispatcher)
	if err != nil {
		return nil, err
	}
	return &dispatched{id: id, dispatcher: d}, nil
}

// newDispatchedXRC creates an ID for one end of extended reliable connections
// on the shared dispatcher.
func newDispatchedXRC(info AddrInfo) (bridge.DispatchedID, error) {
	src, err := info.bindTo()
	if err != nil {
		return nil, err
	}
	d, err := useDispatcher()
	if err != nil {
		return nil, err
	}
	id, err := d.channel.newXRCID(info.QPType, src)
	if err != nil {
		return nil, errors.Join(err, d.release())
	}
	return &dispatched{id: id, dispatcher: d}, nil
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

// newXRCID creates an ID of a type that rdma_create_id does not take, but
// rdma_create_ep does. With RAI_PASSIVE, that call does not wait. The ID can
// still connect.
func (ch *EventChannel) newXRCID(t ibverbs.QPType, src *sockaddr) (*ID, error) {
	if err := ch.self().Use(); err != nil {
		return nil, err
	}
	defer ch.object.Done()
	info := &librdmacm.Addrinfo{
		AiFlags: librdmacm.RAI_PASSIVE, AiPortSpace: int32(PortSpaceIB), AiQpType: int32(t),
		AiSrcAddr: src.ptr(), AiSrcLen: src.size(),
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(info.AiSrcAddr)
	raw, err := librdmacm.CreateEp(info, nil, nil)
	if err != nil {
		return nil, wrap(ch.object.Name(), err)
	}
	if err := librdmacm.MigrateId(raw, ch.raw); err != nil {
		return nil, errors.Join(wrap(ch.object.Name(), err), librdmacm.DestroyEp(raw))
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.adopt(raw), nil
}

// takeOver moves an ID from its event channel to a dispatcher.
func takeOver(id *ID, to bridge.Sink) (bridge.DispatchedID, error) {
	if err := id.checkOwnEvents(); err != nil {
		return nil, err
	}
	if id.taken.Swap(true) {
		return nil, cerr.Refuse("rdma_migrate_id", id.name(), "the id has an endpoint already")
	}
	use := useDispatcher
	if id.backlog.Load() != 0 {
		use = ownDispatcher
	}
	d, err := use()
	if err != nil {
		id.taken.Store(false)
		return nil, err
	}
	taken := &dispatched{id: id, dispatcher: d}
	taken.Start(to) // knows the ID before its first event
	resume := d.channel.pause()
	defer resume()
	if err := id.migrate(d.channel); err != nil {
		d.forget(id)
		id.taken.Store(false)
		return nil, errors.Join(err, d.release())
	}
	return taken, nil
}

func (d *dispatched) ID() any      { return d.id }
func (d *dispatched) Name() string { return d.id.name() }

func (d *dispatched) Start(to bridge.Sink) {
	d.sink = to
	d.id.taken.Store(true)
	on := d.dispatcher
	on.handle(d.id, func(ev *Event) { d.handle(on, ev) })
}

// eventSettled is the type of an event that says that the earlier ones were
// handed out. Its value is a channel to close.
const eventSettled = ^EventType(0)

// handle handles an event that the dispatcher on has read.
func (d *dispatched) handle(on *dispatcher, ev *Event) {
	switch ev.Type {
	case eventSettled:
		close(ev.Value.(chan struct{}))
	case EventConnectRequest:
		on.keep(ev.ID, d.sink.Lock, func() bool { return d.sink.HasRoom(int(d.id.backlog.Load())) }, func() {
			d.sink.Adopt(&dispatched{id: ev.ID, dispatcher: on}, ev)
		})
	default:
		d.sink.Put(ev)
	}
}

func (d *dispatched) Own() error   { return d.move(ownDispatcher) }
func (d *dispatched) Share() error { return d.move(useDispatcher) }

// move lets another dispatcher hand out the ID's events.
func (d *dispatched) move(use func() (*dispatcher, error)) error {
	to, err := d.dispatcher.move(d.id, use, d.handle)
	if to != nil {
		d.dispatcher = to
	}
	return err
}

func (d *dispatched) Migrate(channel any, unread func() []any) error {
	to := channel.(*EventChannel)
	if err := to.self().Use(); err != nil {
		return fmt.Errorf("rdma_migrate_id: channel: %w", err)
	}
	defer to.object.Done()
	defer to.pause()()
	if err := d.id.migrate(to); err != nil {
		return err
	}
	d.settle()
	var events []*Event
	for _, ev := range unread() {
		events = append(events, ev.(*Event))
	}
	d.id.bring(to, events)
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
	case <-d.dispatcher.done: // the dispatcher has failed
	}
}

func (d *dispatched) Release() error {
	d.dispatcher.forget(d.id)
	d.id.taken.Store(false)
	return d.dispatcher.release()
}

func (d *dispatched) QPType() ibverbs.QPType { return d.id.qpType }
func (d *dispatched) IsListening() bool      { return d.id.backlog.Load() != 0 }
func (d *dispatched) WasUp() bool            { return d.id.wasUp() }
func (d *dispatched) IsOver() bool           { return d.id.isOver() }

func (d *dispatched) Device(op string) (any, error) {
	if err := d.id.callBound(op, "bind or resolve the address", func() error { return nil }); err != nil {
		return nil, err
	}
	return d.id.Device()
}

func (d *dispatched) QP(op string) (qp, send, recv, srq any, err error) {
	q, err := d.id.needQP(op)
	return q.QP, q.send, q.recv, q.srq, err
}

func (d *dispatched) Bind(info any) error { return d.id.bindInfo(info.(AddrInfo)) }

func (d *dispatched) ResolveAddr(info any, timeout time.Duration) error {
	return d.id.resolveInfo(info.(AddrInfo), timeout)
}

func (d *dispatched) ResolveRoute(info any, timeout time.Duration) error {
	return d.id.routeInfo(info.(AddrInfo), timeout)
}

func (d *dispatched) Listen(backlog int) error { return d.id.listen(backlogOf(backlog), unread) }
