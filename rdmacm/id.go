package rdmacm

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// PortSpace is the kind of service that an id's port belongs to.
type PortSpace = librdmacm.PortSpace

// The port spaces.
const (
	PortSpaceTCP   PortSpace = librdmacm.RDMA_PS_TCP   // reliable connections
	PortSpaceUDP   PortSpace = librdmacm.RDMA_PS_UDP   // datagrams
	PortSpaceIPoIB PortSpace = librdmacm.RDMA_PS_IPOIB // datagrams to IPoIB
	PortSpaceIB    PortSpace = librdmacm.RDMA_PS_IB    // any service, with addresses of InfiniBand
)

// ID is an end of a connection, or a listener: what a socket is to TCP. It is
// asynchronous: a call that starts something returns at once, and an event of
// its channel says how that went. Its methods may be called from any
// goroutine; those that change the id take turns.
type ID struct {
	object  object.Object
	channel atomic.Pointer[EventChannel] // which Migrate changes
	raw     *librdmacm.CmId
	request *Event // that the id came with
	ps      PortSpace
	qpType  ibverbs.QPType
	value   atomic.Pointer[any]

	endpoint atomic.Bool   // an Endpoint reads its events
	backlog  atomic.Int32  // of one that listens, 0 before
	seen     atomic.Uint32 // a bit for each type of event that was read

	// mu is held while C works on the id, whose queue pair must not go away
	// meanwhile. It is taken before a channel's mu, and guards what follows.
	mu    sync.Mutex
	hasQP bool
	qp    queuePair
	joins []*join
}

// NewID makes an id; see rdma_create_id(3).
func (ch *EventChannel) NewID(ps PortSpace) (*ID, error) {
	if err := ch.self().Use(); err != nil {
		return nil, err
	}
	defer ch.object.Done()
	// A new id has no events, so none is missed before it is known.
	raw, err := librdmacm.CreateId(ch.raw, nil, ps)
	if err != nil {
		return nil, wrap(ch.object.Name(), err)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.adopt(raw), nil
}

// adopt makes an ID of C's. The caller holds ch.mu.
func (ch *EventChannel) adopt(raw *librdmacm.CmId) *ID {
	id := &ID{raw: raw, ps: raw.Ps, qpType: raw.QpType} // which never change
	id.channel.Store(ch)
	id.object.Init(fmt.Sprintf("id %p", raw), &ch.object)
	ch.ids[raw] = id
	return id
}

func (id *ID) self() *object.Object {
	if id == nil {
		return nil
	}
	return &id.object
}

// call makes a call of C for the id.
func (id *ID) call(f func() error) error {
	if err := id.self().Use(); err != nil {
		return err
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	err := f()
	if object := unnamed(err); object != nil {
		*object = id.describe()
	}
	return err
}

// callBound makes a call of C that would follow a null pointer if the id had
// no device. The error then names what must be done before.
func (id *ID) callBound(op, missing string, f func() error) error {
	return id.call(func() error {
		if id.verbs() == nil {
			return errStep(op, "", missing)
		}
		return f()
	})
}

// lockChannel keeps events from being read from the id's channel until the
// function is called. Reading one can change C's id.
func (id *ID) lockChannel() (unlock func()) {
	for {
		ch := id.channel.Load()
		ch.mu.Lock()
		if id.channel.Load() == ch {
			return ch.mu.Unlock
		}
		ch.mu.Unlock() // the id has moved meanwhile
	}
}

// verbs returns the id's device, nil if it has none yet. The id must be in use.
func (id *ID) verbs() *libibverbs.Context {
	defer id.lockChannel()()
	return id.raw.Verbs
}

// Context returns the device that the id is bound to.
func (id *ID) Context() (*ibverbs.Device, error) {
	if err := id.self().Use(); err != nil {
		return nil, err
	}
	defer id.object.Done()
	id.mu.Lock()
	raw := id.verbs()
	id.mu.Unlock()
	if raw == nil {
		return nil, errStep("ID.Context", id.name(), "bind or resolve the address")
	}
	return contextOf(raw)
}

// PortNum returns the number of the port of that device, 0 while there is none.
func (id *ID) PortNum() int {
	if id.self().Use() != nil {
		return 0
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	defer id.lockChannel()()
	return int(id.raw.PortNum)
}

// isDatagram reports whether the id is for datagrams.
func (id *ID) isDatagram() bool { return id.qpType == ibverbs.QPTypeUD }

// PortSpace returns the kind of service that the id is for.
func (id *ID) PortSpace() PortSpace {
	if id == nil {
		return 0
	}
	return id.ps
}

// Request returns the event that the id came with, nil if it was not made by a
// connection request.
func (id *ID) Request() *Event {
	if id == nil {
		return nil
	}
	return id.request
}

// SetValue keeps a value of the caller's with the id, as C keeps a context.
func (id *ID) SetValue(v any) {
	if id != nil {
		id.value.Store(&v)
	}
}

// Value returns what SetValue was given last, nil without.
func (id *ID) Value() any {
	if id == nil {
		return nil
	}
	if v := id.value.Load(); v != nil {
		return *v
	}
	return nil
}

// Raw returns the C object, which is valid until Close.
func (id *ID) Raw() *librdmacm.CmId {
	if id == nil {
		return nil
	}
	return id.raw
}

// Close destroys the id; see rdma_destroy_id(3). A connection ends with it, and
// a request that nobody has answered is rejected. While the id has a queue
// pair, Close does nothing and returns a BusyError. A device that was removed
// is closed with the last id on it, unless it has other objects still.
func (id *ID) Close() error {
	var device *libibverbs.Context
	err := id.close(func() error {
		device = id.verbs()
		return id.destroy()
	})
	if err != nil {
		return err
	}
	id.closed(device)
	return nil
}

// retire is Close, but C keeps the id, whose events still come, until finish.
func (id *ID) retire() error { return id.close(func() error { return nil }) }

// finish does what retire has left out.
func (id *ID) finish() error {
	device := id.verbs()
	if err := id.destroy(); err != nil {
		return err
	}
	id.closed(device)
	return nil
}

// close closes the id but for what destroy has to do with C's.
func (id *ID) close(destroy func() error) error {
	return id.self().Close(nil, func() error {
		id.mu.Lock()
		defer id.mu.Unlock()
		if id.hasQP {
			return &ibverbs.BusyError{Object: id.object.Name(), Children: []string{"its queue pair"}}
		}
		id.leaveAll()
		return destroy()
	})
}

// closed gives up what C's id, which is destroyed, has held.
func (id *ID) closed(device *libibverbs.Context) {
	if device != nil {
		contexts.letGo(device)
	}
	for _, ev := range id.channel.Load().leave(id) {
		if ev.Type == EventConnectRequest { // which nobody has read, so nobody has the new id
			ev.ID.refuse()
		}
	}
}

// destroy waits in C until the events of the id that were read are acknowledged,
// as they are at once. The id is unknown before, because C may give its memory
// to the next one.
func (id *ID) destroy() error {
	ch := id.channel.Load() // which nobody changes any more
	ch.mu.Lock()
	delete(ch.ids, id.raw)
	ch.mu.Unlock()
	if err := librdmacm.DestroyId(id.raw); err != nil {
		ch.mu.Lock()
		ch.ids[id.raw] = id
		ch.mu.Unlock()
		return wrap(id.object.Name(), err)
	}
	return nil
}
