// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"sync"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/object"
)

// Dispatch holds the functions that package rdmacm provides to packages
// endpoint and handled. An id is an *rdmacm.ID, and an event an *rdmacm.Event.
var Dispatch struct {
	// Object returns the lifetime of an id, or nil for a nil pointer.
	Object func(id any) *object.Object

	// New creates an id.
	New func(ps librdmacm.PortSpace) (DispatchedID, error)

	// NewXRC creates an id for one end of extended reliable connections, and
	// binds it to the source of an rdmacm.AddrInfo.
	NewXRC func(info any) (DispatchedID, error)

	// Take takes over an id from its event channel, with its unread events.
	Take func(id any, to Sink) (DispatchedID, error)
}

// A Sink takes the events of an id. Its functions must neither block nor call
// C.
type Sink struct {
	// Put takes an event other than a connection request.
	Put func(ev any)

	// Lock is held while the functions below are called.
	Lock sync.Locker

	// HasRoom reports whether another connection request may wait. The id
	// listens with this backlog.
	HasRoom func(backlog int) bool

	// Adopt takes over a connection request, for which HasRoom has returned
	// true. It must call Start.
	Adopt func(request DispatchedID, ev any)
}

// A DispatchedID is an id whose events package rdmacm reads and passes to a
// sink. Its user calls Own, Share, Migrate and Release one at a time.
type DispatchedID interface {
	// ID returns the id, and Name its name for errors.
	ID() any
	Name() string

	// Start sets the sink.
	Start(to Sink)
	// Own gives an id that does not listen a reader of its own, and Share lets
	// the reader of all ids read its events again.
	Own() error
	Share() error
	// Migrate moves the id to an *rdmacm.EventChannel. It calls unread when
	// the sink gets no more events; the events that unread returns move along.
	Migrate(channel any, unread func() []any) error
	// Release says that the id was closed, or has migrated.
	Release() error

	// QPType returns the type of the id's queue pairs.
	QPType() libibverbs.QpType
	// IsListening, WasUp and IsOver report whether the id listens, whether it
	// has had a connection, and whether that has ended.
	IsListening() bool
	WasUp() bool
	IsOver() bool

	// Device returns the *ibverbs.Device for an operation that needs one.
	Device(op string) (device any, err error)
	// QP returns the *ibverbs.QP for an operation that needs one, its
	// *ibverbs.CQs, and its *ibverbs.SRQ.
	QP(op string) (qp, send, recv, srq any, err error)

	// Bind, ResolveAddr and ResolveRoute are like the methods of the id, for
	// the addresses and the paths of an rdmacm.AddrInfo.
	Bind(info any) error
	ResolveAddr(info any, timeout time.Duration) error
	ResolveRoute(info any, timeout time.Duration) error
	// Listen is like the method of the id, but requests wait in the sink, and
	// not in the kernel.
	Listen(backlog int) error
}
