// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// idInternals gives packages endpoint and handled the methods of an ID that are
// not exported. See package sealed.
//
// Such a package takes an ID with Init, InitXRC, Take or its sink's Adopt, and
// gives it up with Release. In between, a dispatcher reads the ID's events and
// passes them to the sink. Own, Share, Migrate and Release must be called one
// at a time.
type idInternals struct{ id *ID }

// Internals gives other packages of this module access to the ID. Other modules
// cannot use the result.
func (id *ID) Internals() sealed.Of[idInternals] { return sealed.Seal(idInternals{id}) }

// Object returns the object.Object that manages the ID's lifetime, or nil for a
// nil pointer.
func (i idInternals) Object() *object.Object { return i.id.self() }

// Name returns the name of the ID for errors.
func (i idInternals) Name() string { return i.id.name() }

// Init creates a new ID in the port space. The caller then calls Start.
func (i idInternals) Init(ps PortSpace) error {
	return i.id.dispatch(func(ch *EventChannel) error { return ch.create(i.id, ps) })
}

// InitXRC creates a new ID for one end of an extended reliable connection
// (XRC), and binds it to the source of info. The caller then calls Start.
func (i idInternals) InitXRC(info AddrInfo) error {
	src, err := info.bindTo()
	if err != nil {
		return err
	}
	return i.id.dispatch(func(ch *EventChannel) error { return ch.createXRC(i.id, info.QPType, src) })
}

// Start passes the events of the ID to a sink from now on.
func (i idInternals) Start(to sink) { i.id.dispatched.Load().start(to) }

// Take takes the ID from its event channel, with its unread events, and starts
// to pass its events to a sink.
func (i idInternals) Take(to sink) error { return i.id.takeOver(to) }

// Own moves the ID to a dispatcher of its own, whose goroutine reads only the
// events of this ID. The ID must not be listening.
func (i idInternals) Own() error { return i.move(ownDispatcher) }

// Share moves the ID back to the shared dispatcher.
func (i idInternals) Share() error { return i.move(useDispatcher) }

func (i idInternals) move(use func() (*dispatcher, error)) error {
	d, err := i.dispatched()
	if err != nil {
		return err
	}
	return d.move(use)
}

// dispatched returns the object that passes on the ID's events. It fails if no
// other package has taken the ID.
func (i idInternals) dispatched() (*dispatched, error) {
	if d := i.id.dispatched.Load(); d != nil {
		return d, nil
	}
	if err := i.id.self().Use(); err != nil {
		return nil, err
	}
	defer i.id.object.Done()
	return nil, cerr.Refuse("rdma_migrate_id", i.id.name(), "the id no longer belongs to an endpoint.Endpoint or a handled.ID")
}

// Migrate moves the ID to a channel. When the ID's sink gets no more events,
// Migrate calls unread. It also moves the events that unread returns to the
// channel.
func (i idInternals) Migrate(channel *EventChannel, unread func() []*Event) error {
	d, err := i.dispatched()
	if err != nil {
		return err
	}
	return d.migrate(channel, unread)
}

// Release gives up the ID, after it was closed or has migrated.
func (i idInternals) Release() error {
	d, err := i.dispatched()
	if err != nil {
		return err
	}
	return d.release()
}

// QPType returns the type of the ID's queue pairs.
func (i idInternals) QPType() ibverbs.QPType { return i.id.qpType }

// IsListening reports whether the ID listens.
func (i idInternals) IsListening() bool { return i.id.backlog.Load() != 0 }

// WasUp reports whether the ID has had a connection.
func (i idInternals) WasUp() bool { return i.id.wasUp() }

// IsOver reports whether the ID's connection has ended.
func (i idInternals) IsOver() bool { return i.id.isOver() }

// Device returns the ID's device for the operation op. It fails if the ID has
// no device yet.
func (i idInternals) Device(op string) (*ibverbs.Device, error) {
	if err := i.id.callBound(op, "bind or resolve the address", func() error { return nil }); err != nil {
		return nil, err
	}
	return i.id.Device()
}

// QP returns the queue pair for the operation op, its completion queues, and
// its shared receive queue, which may be nil. It fails if the ID has no queue
// pair.
func (i idInternals) QP(op string) (qp *ibverbs.QP, send, recv *ibverbs.CQ, srq *ibverbs.SRQ, err error) {
	q, err := i.id.needQP(op)
	return q.qp, q.send, q.recv, q.srq, err
}

// Bind is like BindAddr, and binds the ID to the source address of info.
func (i idInternals) Bind(info AddrInfo) error { return i.id.bindInfo(info) }

// ResolveAddr is like the method of the ID, for the addresses of info.
func (i idInternals) ResolveAddr(info AddrInfo, timeout time.Duration) error {
	return i.id.resolveInfo(info, timeout)
}

// ResolveRoute is like the method of the ID, but uses the paths of info if
// there are any.
func (i idInternals) ResolveRoute(info AddrInfo, timeout time.Duration) error {
	return i.id.routeInfo(info, timeout)
}

// Listen is like the method of the ID, but requests wait in the sink instead of
// the kernel.
func (i idInternals) Listen(backlog int) error { return i.id.listen(backlogOf(backlog), unread) }

// connInternals gives packages rsocket and transfer what a Conn has that is not
// exported. See package sealed.
type connInternals struct{ c *Conn }

// Internals gives other packages of this module access to the connection. Other
// modules cannot use the result.
func (c *Conn) Internals() sealed.Of[connInternals] { return sealed.Seal(connInternals{c}) }

// Alloc is Conn.Alloc with memory from allocate, which is called only if the
// system has so many bytes.
func (i connInternals) Alloc(size int, access ibverbs.AccessFlags, allocate func(size int) []byte) (*ibverbs.MR, error) {
	return i.c.self().alloc(size, access, allocate)
}

// Await takes completions until the function until returns true, ctx ends or
// the connection is closed. It calls until after completions were taken, and
// after Wake; until must not block or use the connection.
func (i connInternals) Await(ctx context.Context, until func() bool) error {
	return i.c.ops.await(ctx, until)
}

// Wake makes a call of Await that is running, or else a later one, call until
// once more.
func (i connInternals) Wake() { i.c.ops.cq.Wake() }

// SetAside says whether later waits, also those of Await, leave the work of a
// device in this process to other goroutines.
func (i connInternals) SetAside(aside bool) { sealed.Open(i.c.ops.cq.Internals()).SetAside(aside) }

// AwaitFlushed returns when PreparedQP.Flushed is not running. The caller must
// not be Flushed.
func (i connInternals) AwaitFlushed() {
	i.c.flushing.RLock()
	defer i.c.flushing.RUnlock()
}

// IsOver reports whether a posted transfer is over, and if it is, whether it
// has failed.
func (i connInternals) IsOver(t *Transfer) (over, failed bool) {
	if !t.isOver() {
		return false, false
	}
	return true, t.failed || t.err != nil
}

// HasMessage reports whether Receive need not wait, and whether it would fail
// since no more messages come. Only the goroutine that receives may call it.
func (i connInternals) HasMessage() (has, failed bool) {
	s := &i.c.receiver.posted[i.c.receiver.next]
	if s.err != nil {
		return true, true
	}
	op := &s.receive.operation
	if !op.isOver() {
		return false, false
	}
	return true, op.failed || op.err != nil
}
