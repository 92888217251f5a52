package rdmacm

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// PortSpace is the kind of service that an id's port belongs to.
type PortSpace = librdmacm.PortSpace

// The port spaces.
const (
	PortSpaceTCP   = librdmacm.RDMA_PS_TCP   // reliable connections
	PortSpaceUDP   = librdmacm.RDMA_PS_UDP   // datagrams
	PortSpaceIPoIB = librdmacm.RDMA_PS_IPOIB // datagrams to IPoIB
	PortSpaceIB    = librdmacm.RDMA_PS_IB    // any service, with addresses of InfiniBand
)

// ID is an end of a connection, or a listener: what a socket is to TCP. It is
// asynchronous: a call that starts something returns at once, and an event of
// its channel says how that went. Its methods may be called from any
// goroutine; those that change the id take turns.
type ID struct {
	object  object.Object
	channel *EventChannel
	raw     *librdmacm.CmId
	request *Event // that the id came with

	// mu is held while C works on the id, whose queue pair must not go away
	// meanwhile. It is taken before channel.mu.
	mu    sync.Mutex
	hasQP bool // guarded by mu
}

// NewID makes an id; see rdma_create_id(3).
func (ch *EventChannel) NewID(ps PortSpace) (*ID, error) {
	if err := ch.object.Use(); err != nil {
		return nil, err
	}
	defer ch.object.Done()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	raw, err := librdmacm.CreateId(ch.raw, nil, ps)
	if err != nil {
		return nil, cerr.Wrap(ch.object.Name(), err)
	}
	return ch.adopt(raw), nil
}

// adopt makes an ID of C's. The caller holds ch.mu.
func (ch *EventChannel) adopt(raw *librdmacm.CmId) *ID {
	id := &ID{channel: ch, raw: raw}
	id.object.Init(fmt.Sprintf("id %p", raw), &ch.object)
	ch.ids[raw] = id
	return id
}

// call makes a call of C for the id.
func (id *ID) call(f func() error) error {
	if err := id.object.Use(); err != nil {
		return err
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	err := f()
	if e, ok := err.(*Error); ok && e.Object == "" {
		e.Object = id.describe()
	}
	return err
}

// callBound makes a call of C that would follow a null pointer if the id had
// no device. The error then names what must be done before.
func (id *ID) callBound(op, missing string, f func() error) error {
	return id.call(func() error {
		if id.verbs() == nil {
			return errStep(op, missing)
		}
		return f()
	})
}

// describe names the id by its addresses as far as it has any.
func (id *ID) describe() string {
	local, peer := id.LocalAddr(), id.PeerAddr()
	switch {
	case peer.IsValid() && peer.Port() != 0:
		return fmt.Sprintf("%v to %v", local, peer)
	case local.IsValid():
		return local.String()
	}
	return "unbound id"
}

// errStep says that a call came too early. C would follow a null pointer.
func errStep(op, missing string) error {
	return fmt.Errorf("%s: %s first: %w", op, missing, syscall.EINVAL)
}

// verbs returns the id's device, nil if it has none yet. The id must be in use.
func (id *ID) verbs() *libibverbs.Context {
	id.channel.mu.Lock()
	defer id.channel.mu.Unlock()
	return id.raw.Verbs
}

// BindAddr gives the id a local address; see rdma_bind_addr(3). Port 0 lets
// the system choose one.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	sa, err := newSockaddr(addr)
	if err != nil {
		return err
	}
	// In an error it is this address that matters, which the id does not have yet.
	return id.call(func() error { return cerr.Wrap(addr.String(), librdmacm.BindAddr(id.raw, sa.ptr())) })
}

// Listen makes the id wait for connection requests, which come as
// EventConnectRequest; see rdma_listen(3). Up to backlog requests wait to be
// read.
func (id *ID) Listen(backlog int) error {
	return id.call(func() error { return librdmacm.Listen(id.raw, int32(backlog)) })
}

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). EventAddrResolved or EventAddrError follows. The
// source may be the zero value.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	if !dst.IsValid() {
		return fmt.Errorf("rdma_resolve_addr: no destination: %w", syscall.EINVAL)
	}
	to, err := newSockaddr(dst)
	if err != nil {
		return err
	}
	route := dst.String()
	var from *librdmacm.Sockaddr
	if src.IsValid() {
		sa, err := newSockaddr(src)
		if err != nil {
			return err
		}
		from = sa.ptr()
		route = src.String() + " to " + route
	}
	return id.call(func() error {
		return cerr.Wrap(route, librdmacm.ResolveAddr(id.raw, from, to.ptr(), milliseconds(timeout)))
	})
}

// ResolveRoute finds the path to the destination; see rdma_resolve_route(3).
// EventRouteResolved or EventRouteError follows. Where the InfiniBand address
// cache daemon runs, the call waits for its answer.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	return id.callBound("rdma_resolve_route", "resolve the address", func() error {
		return librdmacm.ResolveRoute(id.raw, milliseconds(timeout))
	})
}

func milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 1), 1<<31-1))
}

// ConnParam is what the two ends of a connection tell each other.
type ConnParam struct {
	PrivateData        []byte // see Config.PrivateData for how much
	ResponderResources uint8  // RDMA reads and atomics that the peer may have under way here
	InitiatorDepth     uint8  // and that this end may have under way there
	RetryCount         uint8  // times to send again without an answer, up to 7
	RNRRetryCount      uint8  // times to send again without a receive at the peer; 7 is for ever
	QPNum              uint32 // of a queue pair that was not made by CreateQP
}

// with calls f with the parameters as C takes them. The length of the private
// data has been checked.
func (p ConnParam) with(f func(*librdmacm.ConnParam) error) error {
	raw := &librdmacm.ConnParam{
		PrivateDataLen:     uint8(len(p.PrivateData)),
		ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		RetryCount: p.RetryCount, RnrRetryCount: p.RNRRetryCount, QpNum: p.QPNum,
	}
	if len(p.PrivateData) > 0 {
		raw.PrivateData = unsafe.Pointer(unsafe.SliceData(p.PrivateData))
	}
	pin := pinned(raw.PrivateData)
	defer pin.Unpin()
	return f(raw)
}

// Connect asks the peer for a connection; see rdma_connect(3).
// EventEstablished follows, or EventConnectResponse if the id has no queue
// pair of its own, or an event that reports a failure.
func (id *ID) Connect(p ConnParam) error {
	return id.callBound("rdma_connect", "resolve the address and the route", func() error {
		if err := id.checkPrivateData(limitsOfRequest, p.PrivateData); err != nil {
			return fmt.Errorf("rdma_connect: %w", err)
		}
		return p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Connect(id.raw, raw) })
	})
}

// Accept answers a connection request; see rdma_accept(3). EventEstablished
// follows.
func (id *ID) Accept(p ConnParam) error {
	if id.request == nil {
		return errStep("rdma_accept", "receive a connection request")
	}
	return id.callBound("rdma_accept", "receive a connection request", func() error {
		if p.QPNum == 0 && !id.hasQP {
			return errStep("rdma_accept", "create a queue pair")
		}
		if err := id.checkPrivateData(limitsOfReply, p.PrivateData); err != nil {
			return fmt.Errorf("rdma_accept: %w", err)
		}
		return p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Accept(id.raw, raw) })
	})
}

// Reject refuses a connection request; see rdma_reject(3). The peer gets the
// private data, of up to 148 bytes, and the reason ReasonConsumer. The id
// still has to be closed.
func (id *ID) Reject(privateData []byte) error {
	if id.request == nil {
		return errStep("rdma_reject", "receive a connection request")
	}
	return id.callBound("rdma_reject", "receive a connection request", func() error {
		if err := id.checkPrivateData(limitsOfReject, privateData); err != nil {
			return fmt.Errorf("rdma_reject: %w", err)
		}
		return librdmacm.Reject(id.raw, unsafe.Pointer(unsafe.SliceData(privateData)), uint8(len(privateData)))
	})
}

// Establish completes a connection whose queue pair was not made by CreateQP,
// after EventConnectResponse; see rdma_establish(3).
func (id *ID) Establish() error {
	return id.callBound("rdma_establish", "connect", func() error { return librdmacm.Establish(id.raw) })
}

// Disconnect ends the connection and moves the id's queue pair into the error
// state; see rdma_disconnect(3). EventDisconnected follows at both ends.
func (id *ID) Disconnect() error {
	return id.callBound("rdma_disconnect", "connect", func() error { return librdmacm.Disconnect(id.raw) })
}

// Context returns the device that the id is bound to.
func (id *ID) Context() (*ibverbs.Context, error) {
	if err := id.object.Use(); err != nil {
		return nil, err
	}
	defer id.object.Done()
	raw := id.verbs()
	if raw == nil {
		return nil, errStep("device of an id", "bind or resolve the address")
	}
	return contextOf(raw)
}

// PortNum returns the number of the port of that device, 0 while there is none.
func (id *ID) PortNum() int {
	if id.object.Use() != nil {
		return 0
	}
	defer id.object.Done()
	id.channel.mu.Lock()
	defer id.channel.mu.Unlock()
	return int(id.raw.PortNum)
}

// CreateQP makes a queue pair whose states follow the connection; see
// rdma_create_qp(3). It must be closed before the id.
func (id *ID) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
	if pd == nil {
		return nil, cerr.Nil("rdma_create_qp", "pd")
	}
	return pd.NewQP(config, func(attr *libibverbs.QpInitAttrEx) (qp *libibverbs.Qp, destroy func() error, err error) {
		err = id.callBound("rdma_create_qp", "bind or resolve the address", func() error {
			if id.hasQP {
				return fmt.Errorf("rdma_create_qp: the id has a queue pair: %w", syscall.EINVAL)
			}
			id.channel.mu.Lock()
			defer id.channel.mu.Unlock()
			if err := librdmacm.CreateQpEx(id.raw, attr); err != nil {
				return err
			}
			id.hasQP = true
			qp = id.raw.Qp
			return nil
		})
		return qp, func() error { return id.destroyQP(qp) }, err
	})
}

// destroyQP is what rdma_destroy_qp does, but for its silence about errors.
func (id *ID) destroyQP(qp *libibverbs.Qp) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.channel.mu.Lock()
	defer id.channel.mu.Unlock()
	if err := libibverbs.DestroyQp(qp); err != nil {
		return err
	}
	id.raw.Qp = nil
	id.hasQP = false
	return nil
}

// InitQPAttr returns the attributes with which to move a queue pair that was
// not made by CreateQP into a state of the connection; see
// rdma_init_qp_attr(3).
func (id *ID) InitQPAttr(state ibverbs.QPState) (*libibverbs.QpAttr, libibverbs.QpAttrMask, error) {
	attr := &libibverbs.QpAttr{QpState: state}
	var mask int32
	err := id.call(func() error {
		var err error
		mask, err = librdmacm.InitQpAttr(id.raw, attr)
		return err
	})
	return attr, libibverbs.QpAttrMask(mask), err
}

// LocalAddr returns the id's own address, the zero value while it has none.
func (id *ID) LocalAddr() netip.AddrPort { return id.addr(librdmacm.GetLocalAddr) }

// PeerAddr returns the peer's address, the zero value while there is none.
func (id *ID) PeerAddr() netip.AddrPort { return id.addr(librdmacm.GetPeerAddr) }

func (id *ID) addr(get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error)) netip.AddrPort {
	if id.object.Use() != nil {
		return netip.AddrPort{}
	}
	defer id.object.Done()
	sa, err := get(id.raw)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(sa)
}

// Raw returns the C object, which is valid until Close.
func (id *ID) Raw() *librdmacm.CmId { return id.raw }

// Close destroys the id; see rdma_destroy_id(3). A connection ends with it.
// While the id has a queue pair, Close does nothing and returns a BusyError.
func (id *ID) Close() error {
	return id.object.Close(nil, func() error {
		id.mu.Lock()
		defer id.mu.Unlock()
		id.channel.mu.Lock()
		defer id.channel.mu.Unlock()
		if id.hasQP {
			return &ibverbs.BusyError{Object: id.object.Name(), Children: []string{"its queue pair"}}
		}
		if err := librdmacm.DestroyId(id.raw); err != nil {
			return cerr.Wrap(id.object.Name(), err)
		}
		delete(id.channel.ids, id.raw)
		return nil
	})
}
