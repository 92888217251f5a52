// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/backlog"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// PortSpace is a kind of service. Each kind has its own port numbers.
type PortSpace = librdmacm.PortSpace

// The port spaces.
const (
	PortSpaceTCP   PortSpace = librdmacm.RDMA_PS_TCP   // reliable connections
	PortSpaceUDP   PortSpace = librdmacm.RDMA_PS_UDP   // datagrams
	PortSpaceIPoIB PortSpace = librdmacm.RDMA_PS_IPOIB // datagrams to and from IPoIB
	PortSpaceIB    PortSpace = librdmacm.RDMA_PS_IB    // any service, with InfiniBand addresses
)

// ID is one end of a connection, or a listener, as a socket is for TCP. It is
// asynchronous: a call that starts an operation returns at once, and an event
// on the ID's channel reports the result. Methods may be called from any
// goroutine; those that change the ID run one at a time.
type ID struct {
	object  object.Object
	channel atomic.Pointer[EventChannel] // changed by Migrate
	raw     *librdmacm.CmId
	request *Event // the connection request that created the ID, if any
	ps      PortSpace
	qpType  ibverbs.QPType
	value   atomic.Pointer[any]
	link    atomic.Pointer[string] // name of the network interface of link-local addresses, once zone has found it

	backlog atomic.Int32  // maximum number of waiting requests, set by Listen; 0 before
	seen    atomic.Uint32 // one bit for each type of event read

	dispatched atomic.Pointer[dispatched] // not nil while another package takes the events

	// mu is held while C works on the ID, so that its queue pair cannot go
	// away. It is taken before a channel's mu, and guards the fields below.
	mu    sync.Mutex
	hasQP bool
	// answered is set when the request that created the ID was accepted or
	// rejected.
	answered bool
	qp       queuePair
	joins    []*join
}

// NewID creates an ID that reports its events on the channel; see
// rdma_create_id(3).
func (ch *EventChannel) NewID(ps PortSpace) (*ID, error) {
	id := new(ID)
	if err := ch.create(id, ps); err != nil {
		return nil, err
	}
	return id, nil
}

// create creates an ID in C for id, which is new.
func (ch *EventChannel) create(id *ID, ps PortSpace) error {
	if err := ch.self().Use(); err != nil {
		return err
	}
	defer ch.object.Done()
	// A new ID has no events, so none is missed before the channel knows it.
	raw, err := librdmacm.CreateId(ch.raw, nil, ps)
	if err != nil {
		return wrap(ch.object.Name(), err)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.adopt(id, raw)
	return nil
}

// adopt makes raw the C object of id, which is new. The caller must hold ch.mu.
func (ch *EventChannel) adopt(id *ID, raw *librdmacm.CmId) {
	id.raw, id.ps, id.qpType = raw, raw.Ps, raw.QpType // none of them ever changes
	id.channel.Store(ch)
	id.object.Init(fmt.Sprintf("id %p", raw), &ch.object)
	ch.ids[raw] = id
}

func (id *ID) self() *object.Object {
	if id == nil {
		return nil
	}
	return &id.object
}

// call calls f, which calls C for the ID, with mu held. It adds the ID's name
// to an error without one.
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

// callBound is like call, for a C function that would follow a null pointer if
// the ID had no device. Without a device, callBound returns an error, which
// says that the step named missing must come first.
func (id *ID) callBound(op, missing string, f func() error) error {
	return id.call(func() error {
		if id.verbs() == nil {
			return errStep(op, "", missing)
		}
		return f()
	})
}

// lockChannel locks a mutex that prevents events from being read from the ID's
// channel. The caller must unlock it. Reading an event can change C's ID.
func (id *ID) lockChannel() *sync.Mutex {
	for {
		ch := id.channel.Load()
		ch.mu.Lock()
		if id.channel.Load() == ch {
			return &ch.mu
		}
		ch.mu.Unlock() // the ID has moved to another channel
	}
}

// verbs returns the ID's device, or nil if it has none yet. The caller must
// have called Use on the ID.
func (id *ID) verbs() *libibverbs.Context {
	defer id.lockChannel().Unlock()
	return id.raw.Verbs
}

// Device returns the device that the ID is bound to. It fails until the
// address is bound or resolved.
func (id *ID) Device() (*ibverbs.Device, error) {
	if err := id.self().Use(); err != nil {
		return nil, err
	}
	defer id.object.Done()
	id.mu.Lock()
	raw := id.verbs()
	id.mu.Unlock()
	if raw == nil {
		return nil, errStep("ID.Device", id.name(), "bind or resolve the address")
	}
	return deviceOf(raw)
}

// PortNum returns the port of the device that the ID is bound to, from 1, or 0
// if it is not bound.
func (id *ID) PortNum() int {
	if id.self().Use() != nil {
		return 0
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	defer id.lockChannel().Unlock()
	return int(id.raw.PortNum)
}

// isDatagram reports whether the ID is for datagrams.
func (id *ID) isDatagram() bool { return id.qpType == ibverbs.QPTypeUD }

// PortSpace returns the port space that the ID was created in.
func (id *ID) PortSpace() PortSpace {
	if id == nil {
		return 0
	}
	return id.ps
}

// Request returns the EventConnectRequest that created the ID, or nil if the
// program created it.
func (id *ID) Request() *Event {
	if id == nil {
		return nil
	}
	return id.request
}

// SetValue stores a value with the ID for the caller, like the context of a C
// ID.
func (id *ID) SetValue(v any) {
	if id != nil {
		id.value.Store(&v)
	}
}

// Value returns the value last passed to SetValue, or nil.
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

// Close destroys the ID; see rdma_destroy_id(3). It ends a connection and
// rejects a request that was not answered. While the ID has a queue pair, Close
// does nothing and returns an *ibverbs.BusyError. Closing the last ID on a
// removed device closes the device too, unless other objects still use it.
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

// retire closes the ID but keeps C's ID, whose events still arrive, until
// finish.
func (id *ID) retire() error { return id.close(func() error { return nil }) }

// finish destroys C's ID after retire.
func (id *ID) finish() error {
	device := id.verbs()
	if err := id.destroy(); err != nil {
		return err
	}
	id.closed(device)
	return nil
}

// close closes the ID. It calls destroy to destroy C's ID.
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

// closed releases what the ID held, after C's ID was destroyed.
func (id *ID) closed(device *libibverbs.Context) {
	if device != nil {
		opened.letGo(device)
	}
	for _, ev := range id.channel.Load().leave(id) {
		if ev.Type == EventConnectRequest { // unread, so no caller has the new ID
			ev.ID.refuse()
		}
	}
}

// destroy destroys C's ID. C waits until the events that were read are
// acknowledged, which happens at once. The channel forgets the ID first,
// because C may reuse its memory for the next one.
func (id *ID) destroy() error {
	ch := id.channel.Load() // the ID is closed, so the channel cannot change any more
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

// bindInfo binds the ID to the source address.
func (id *ID) bindInfo(info AddrInfo) error {
	if info.Family == FamilyIB {
		return id.BindIB(info.SrcIB)
	}
	return id.BindAddr(info.Src)
}

// resolveInfo starts to find the device and the hardware address for the
// destination.
func (id *ID) resolveInfo(info AddrInfo, timeout time.Duration) error {
	if info.Family != FamilyIB {
		return id.ResolveAddr(info.Src, info.Dst, timeout)
	}
	var src *IBAddr
	if info.SrcIB != (IBAddr{}) {
		src = &info.SrcIB
	}
	return id.ResolveIB(src, info.DstIB, timeout)
}

// routeInfo starts to find the path to the destination, unless info has paths.
func (id *ID) routeInfo(info AddrInfo, timeout time.Duration) error {
	if len(info.Paths) > 0 {
		return id.SetIBPaths(info.Paths...)
	}
	return id.ResolveRoute(timeout)
}

// LocalAddr returns the local IP address and port. It returns the zero value if
// the ID has no address or an InfiniBand address. The zone of a link-local
// address is the network interface.
func (id *ID) LocalAddr() netip.AddrPort {
	return id.zoned(address(id, librdmacm.GetLocalAddr, addrPort))
}

// RemoteAddr returns the peer's IP address and port. It returns the zero value
// if the peer's address is not known or is an InfiniBand address. The zone of a
// link-local address is the network interface that reaches it.
func (id *ID) RemoteAddr() netip.AddrPort {
	return id.zoned(address(id, librdmacm.GetPeerAddr, addrPort))
}

// zoned returns an address of the ID with its zone, if it needs one. The kernel
// gives the accepting end no zone.
func (id *ID) zoned(addr netip.AddrPort) netip.AddrPort {
	if !needsZone(addr.Addr()) || addr.Addr().Zone() != "" {
		return addr
	}
	return netip.AddrPortFrom(addr.Addr().WithZone(id.zone()), addr.Port())
}

// zone returns the name of the network interface of the ID's link-local
// addresses, or "" if it is not known. Both addresses are on one link.
func (id *ID) zone() string {
	if known := id.link.Load(); known != nil {
		return *known
	}
	local := address(id, librdmacm.GetLocalAddr, addrPort).Addr()
	name := local.Zone()
	if request := id.Request(); name == "" && request != nil {
		// A listener with a zone takes only requests from that zone.
		name = address(request.ListenID, librdmacm.GetLocalAddr, addrPort).Addr().Zone()
	}
	if device, err := id.Device(); name == "" && err == nil {
		// Several interfaces, such as VLANs, may have the address.
		if attr, _, err := id.InitQPAttr(ibverbs.QPStateRTR); err == nil {
			gid, _ := device.QueryGIDEntry(id.PortNum(), attr.Path.SGIDIndex)
			name = gid.NetDev
		} else if gid, err := device.BestGID(id.PortNum(), ibverbs.GIDConfig{Addr: local}); err == nil {
			name = gid.NetDev
		}
	}
	if name != "" {
		id.link.Store(&name)
	}
	return name
}

func address[T any](
	id *ID, get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error), read func(*librdmacm.Sockaddr) T,
) (addr T) {
	if id.self().Use() != nil {
		return addr
	}
	defer id.object.Done()
	// Both a C call and an event can change the address.
	id.mu.Lock()
	defer id.mu.Unlock()
	defer id.lockChannel().Unlock()
	return addressOf(id, get, read)
}

// addressOf is like the function address, for a caller that holds id.mu and the
// channel's mu.
func addressOf[T any](
	id *ID, get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error), read func(*librdmacm.Sockaddr) T,
) (addr T) {
	if sa, err := get(id.raw); err == nil {
		addr = read(sa)
	}
	return addr
}

// describe returns a name for the ID that consists of the addresses that it
// has. The caller holds id.mu.
func (id *ID) describe() string {
	if id.raw == nil {
		return id.object.Name()
	}
	defer id.lockChannel().Unlock()
	local, peer := addressOf(id, librdmacm.GetLocalAddr, addrPort), addressOf(id, librdmacm.GetPeerAddr, addrPort)
	switch {
	case peer.IsValid() && peer.Port() != 0 && local.IsValid():
		return fmt.Sprintf("%v to %v", local, peer)
	case peer.IsValid() && peer.Port() != 0:
		return "to " + peer.String()
	case local.IsValid():
		return local.String()
	}
	if ib := addressOf(id, librdmacm.GetLocalAddr, ibAddr); ib != (IBAddr{}) {
		return ib.String()
	}
	return "unbound id"
}

// name returns describe's text to a caller that holds no lock. While C works on
// the ID, it returns a name without addresses instead of waiting.
func (id *ID) name() string {
	if id == nil {
		return ""
	}
	if id.self().Use() != nil {
		return id.object.Name()
	}
	defer id.object.Done()
	if !id.mu.TryLock() {
		return id.object.Name()
	}
	defer id.mu.Unlock()
	return id.describe()
}

// SetTOS sets the type of service, which goes into the IP header on RoCE and
// iWARP and selects the service level on InfiniBand; see rdma_set_option(3).
// Call it before ResolveRoute. Accepted connections use the type of service of
// the peer.
func (id *ID) SetTOS(tos uint8) error { return setIDOption(id, librdmacm.RDMA_OPTION_ID_TOS, tos) }

// SetReuseAddr lets the ID bind to an address that another ID has, if both IDs
// have this option; see rdma_set_option(3). One of them can listen only after
// the others are closed. Call it before BindAddr.
func (id *ID) SetReuseAddr(on bool) error {
	return setIDOption(id, librdmacm.RDMA_OPTION_ID_REUSEADDR, number(on))
}

// SetAFOnly sets whether an ID that listens on every IPv6 address ignores IPv4,
// as IPV6_V6ONLY does for sockets; see rdma_set_option(3). Call it before
// BindAddr.
func (id *ID) SetAFOnly(on bool) error {
	return setIDOption(id, librdmacm.RDMA_OPTION_ID_AFONLY, number(on))
}

func number(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

// maxAckTimeout is the longest time for SetAckTimeout: 4.096 us * 2^31.
const maxAckTimeout = 4096 << 31

// SetAckTimeout sets how long the queue pair waits for an acknowledgement
// before it sends again; see rdma_set_option(3). The time is rounded up to
// 4.096 us * 2^n and may be at most 2.4 hours. Call it before Connect or
// Accept.
func (id *ID) SetAckTimeout(d time.Duration) error {
	if d <= 0 || d > maxAckTimeout {
		return cerr.Refuse("rdma_set_option", id.name(), "the ack timeout is %v, not from 1ns to %v", d, time.Duration(maxAckTimeout))
	}
	exponent := bits.Len64(uint64(d-1) / 4096)
	return setIDOption(id, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT, uint8(max(exponent, 1))) // 0 would mean forever
}

func setIDOption[T any](id *ID, option librdmacm.IDOption, value T) error {
	return id.setOption(librdmacm.RDMA_OPTION_ID, int32(option), unsafe.Pointer(&value), unsafe.Sizeof(value))
}

func (id *ID) setOption(level librdmacm.OptionLevel, option int32, value unsafe.Pointer, size uintptr) error {
	return id.call(func() error {
		return librdmacm.SetOption(id.raw, level, option, value, uint64(size))
	})
}

// BindAddr binds the ID to a local address; see rdma_bind_addr(3). Port 0 lets
// the system choose one. An address without an IP, or with a loopback IP,
// stands for every address of every device.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	sa, err := newSockaddr(addr)
	if err != nil {
		return err
	}
	name := addr.String()
	if !addr.Addr().IsValid() {
		name = fmt.Sprintf(":%d", addr.Port()) // as the caller passes it to Listen
	}
	return id.explainBind(id.bind(sa, name), addr)
}

func (id *ID) bind(sa *sockaddr, name string) error {
	// Errors name the requested address, which the ID does not have yet.
	return id.call(func() error { return wrap(name, librdmacm.BindAddr(id.raw, sa.ptr())) })
}

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). EventAddrResolved or EventAddrError follows, at the
// latest after the timeout, which has a resolution of 1 ms. src may be the zero
// value.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	if !dst.IsValid() {
		return cerr.Refuse("rdma_resolve_addr", id.name(), "no destination: dst is the zero AddrPort")
	}
	to, err := newSockaddr(dst)
	if err != nil {
		return err
	}
	if !src.IsValid() {
		return explainResolve(id.resolveAddr(nil, to, timeout, dst.String()), src, dst)
	}
	from, err := newSockaddr(src)
	if err != nil {
		return err
	}
	return explainResolve(id.resolveAddr(from, to, timeout, src.String()+" to "+dst.String()), src, dst)
}

func (id *ID) resolveAddr(src, dst *sockaddr, timeout time.Duration, name string) error {
	var from *librdmacm.Sockaddr
	if src != nil {
		from = src.ptr()
	}
	return id.call(func() error {
		return wrap(name, librdmacm.ResolveAddr(id.raw, from, dst.ptr(), milliseconds(timeout)))
	})
}

// ResolveRoute finds the path to the destination; see rdma_resolve_route(3).
// EventRouteResolved or EventRouteError follows, at the latest after the
// timeout. If the InfiniBand address cache daemon runs, the call waits for its
// answer.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	const missing = "resolve the address"
	err := id.callBound("rdma_resolve_route", missing, func() error {
		return librdmacm.ResolveRoute(id.raw, milliseconds(timeout))
	})
	err = id.explainRoute(err)
	return explain(err, id.saw(EventAddrResolved), missing)
}

func milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 1), 1<<31-1))
}

const opCreateQP = "rdma_create_qp"

// CreateQP creates a queue pair; see rdma_create_qp(3). librdmacm changes its
// state as the connection is established and ends. Close the queue pair before
// the ID.
func (id *ID) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
	if pd == nil {
		return nil, cerr.Nil(opCreateQP, "pd")
	}
	qp, err := sealed.Open(pd.Internals()).NewQP(config, func(attr *libibverbs.QpInitAttrEx) (qp *libibverbs.Qp, destroy func() error, err error) {
		err = id.callBound(opCreateQP, "bind or resolve the address", func() error {
			if id.hasQP {
				return errExists(opCreateQP, "", "queue pair")
			}
			if id.verbs() != pd.Device().Raw() {
				return cerr.Refuse(opCreateQP, "", "the protection domain is not of the ID's device: allocate it on the device from ID.Device, rdmacm.Devices or Listener.Device")
			}
			if err := librdmacm.CreateQpEx(id.raw, attr); err != nil {
				return err
			}
			id.hasQP = true
			defer id.lockChannel().Unlock()
			qp = id.raw.Qp
			return nil
		})
		return qp, func() error { return id.destroyQP(pd.Device(), qp) }, err
	})
	if err != nil {
		return nil, err
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.qp = queuePair{qp, config.SendCQ, config.RecvCQ, config.SRQ}
	return qp, nil
}

// queuePair is a queue pair with its completion queues.
type queuePair struct {
	qp         *ibverbs.QP
	send, recv *ibverbs.CQ
	srq        *ibverbs.SRQ
}

// QP returns the queue pair that CreateQP has created, or nil if there is none.
func (id *ID) QP() *ibverbs.QP {
	if id.self().Use() != nil {
		return nil
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp.qp
}

// needQP returns the queue pair for an operation that needs one.
func (id *ID) needQP(op string) (queuePair, error) {
	var qp queuePair
	err := id.call(func() error {
		if id.qp.qp == nil {
			return errStep(op, "", "create a queue pair")
		}
		qp = id.qp
		return nil
	})
	return qp, err
}

// destroyQP does what rdma_destroy_qp does, but returns errors. The ID forgets
// the queue pair first, because reading an event may change the state of the
// queue pair that the ID has. The kernel may take a minute. The ID is not
// locked during that time, so that reading its events does not wait.
func (id *ID) destroyQP(device *ibverbs.Device, qp *libibverbs.Qp) error {
	id.mu.Lock()
	id.leaveAll()
	id.setQP(nil)
	known := id.qp
	id.qp = queuePair{}
	id.mu.Unlock()
	err := libibverbs.DestroyQp(qp)
	failed := err != nil && !(errors.Is(err, syscall.EIO) && device.Removed())
	id.mu.Lock()
	defer id.mu.Unlock()
	if failed {
		id.qp = known
		id.setQP(qp)
		return err
	}
	id.hasQP = false
	return err
}

func (id *ID) setQP(qp *libibverbs.Qp) {
	defer id.lockChannel().Unlock()
	id.raw.Qp = qp
}

// InitQPAttr returns the attributes and the mask to pass to QP.Modify. They
// move a queue pair that CreateQP did not create into a state of the
// connection; see rdma_init_qp_attr(3).
func (id *ID) InitQPAttr(state ibverbs.QPState) (ibverbs.QPAttr, ibverbs.QPAttrMask, error) {
	raw := &libibverbs.QpAttr{QpState: state}
	var mask ibverbs.QPAttrMask
	err := id.callBound("rdma_init_qp_attr", "bind or resolve the address", func() (err error) {
		mask, err = librdmacm.InitQpAttr(id.raw, raw)
		return err
	})
	if err != nil {
		return ibverbs.QPAttr{}, 0, err
	}
	return ibverbs.QPAttrFromRaw(raw), mask, nil
}

func rawECE(ece ibverbs.ECE) *libibverbs.Ece {
	return &libibverbs.Ece{VendorId: ece.VendorID, Options: ece.Options}
}

// ConnParam holds the parameters that each end of a connection sends to the
// other; see rdma_connect(3). The zero value is usable.
type ConnParam struct {
	// PrivateData is sent to the peer. Config.PrivateData states the maximum
	// length.
	PrivateData []byte
	// ResponderResources is how many RDMA reads and atomics the peer may have
	// outstanding here; InitiatorDepth is how many this end may have
	// outstanding there. 0 means as many as the device and, for Accept, the
	// peer allow; a negative value means none.
	ResponderResources, InitiatorDepth int
	// FlowControl lets the device tell the peer how many receives are posted.
	FlowControl bool
	// RetryCount is how often either end retries a message that is not
	// acknowledged. Both ends use the value passed to Connect; Accept ignores
	// its value. 0 means 6; a negative value means no retries. The maximum is
	// 7, which Soft-RoCE treats as forever.
	RetryCount int
	// PeerRNRRetryCount is how often the peer retries a message while no
	// receive is posted here. 0 means ibverbs.RNRRetryForever; a negative value
	// means no retries.
	PeerRNRRetryCount int

	// QPNum is the number of a queue pair that CreateQP did not create, and SRQ
	// is set if that queue pair uses a shared receive queue. Both are ignored
	// if the ID has a queue pair from CreateQP; without one, Accept fails if
	// QPNum is 0.
	QPNum uint32
	SRQ   bool
}

// orDefault returns count, or def if count is 0, limited to the range from 0 to
// most.
func orDefault(count, def, most int) int { return min(max(cmp.Or(count, def), 0), most) }

// with calls f with the parameters in C's form. The caller has checked the
// length of the private data.
func (p ConnParam) with(f func(*librdmacm.ConnParam) error) error {
	raw := &librdmacm.ConnParam{
		PrivateDataLen:     uint8(len(p.PrivateData)),
		ResponderResources: uint8(orDefault(p.ResponderResources, librdmacm.RDMA_MAX_RESP_RES, librdmacm.RDMA_MAX_RESP_RES)),
		InitiatorDepth:     uint8(orDefault(p.InitiatorDepth, librdmacm.RDMA_MAX_INIT_DEPTH, librdmacm.RDMA_MAX_INIT_DEPTH)),
		RetryCount:         uint8(orDefault(p.RetryCount, defaultRetry, maxRetry)),
		RnrRetryCount:      uint8(orDefault(p.PeerRNRRetryCount, defaultRNRRetry, maxRetry)),
		QpNum:              p.QPNum,
	}
	if p.FlowControl {
		raw.FlowControl = 1
	}
	if p.SRQ {
		raw.Srq = 1
	}
	if data := slices.Clone(p.PrivateData); len(data) > 0 {
		raw.PrivateData = unsafe.Pointer(unsafe.SliceData(data))
	}
	pin := pinned(raw.PrivateData)
	defer pin.Unpin()
	return f(raw)
}

// Listen starts listening for connection requests, which arrive as
// EventConnectRequest; see rdma_listen(3). backlog is the maximum number of
// requests that wait to be read from the channel. 0, or more than the system's
// limit, means that limit: net.rdma_ucm.max_backlog, 1024 by default. Further
// requests get no answer, and their peers ask again some seconds later.
func (id *ID) Listen(backlog int) error {
	return id.listen(backlogOf(backlog), max(0, min(backlog, maxBacklog)))
}

// backlogOf returns how many requests may wait if the caller passed n.
func backlogOf(n int) int {
	if n <= 0 {
		n = backlog.Default()
	}
	return min(n, maxBacklog)
}

// unread is the kernel's backlog for a listener that reads each request at
// once, and keeps or rejects it. 0 means as many requests as the system allows.
// The kernel does not answer requests for which it has no room.
const unread = 0

// listen is like Listen, with two limits. backlog is the maximum number of
// requests that wait for the program. kernel is the maximum number of requests
// that wait to be read from the channel.
func (id *ID) listen(backlog, kernel int) error {
	return id.call(func() error {
		before := id.backlog.Load()
		id.backlog.Store(int32(backlog)) // must be set before a request can come
		err := librdmacm.Listen(id.raw, int32(kernel))
		if err != nil {
			id.backlog.Store(before)
		}
		if errnoOf(err) == syscall.EADDRINUSE {
			setHint(err, alsoListens)
		}
		return err
	})
}

// Connect asks the peer for a connection; see rdma_connect(3). EventEstablished
// follows, or EventConnectResponse if CreateQP has not created a queue pair, or
// an event that reports a failure. For datagrams, Connect asks for the peer's
// queue pair, which EventEstablished holds.
func (id *ID) Connect(p ConnParam) error { return id.connect(p, false) }

// connect is like Connect. movesQP says that the caller changes the queue
// pair's state itself. If it is set, librdmacm does not see the queue pair
// until Establish.
func (id *ID) connect(p ConnParam, movesQP bool) error {
	const missing = "resolve the address and the route"
	err := id.callBound("rdma_connect", missing, func() error {
		if err := id.checkPrivateData(limitsOfRequest, p.PrivateData); err != nil {
			return cerr.Argument("rdma_connect", "", err)
		}
		if movesQP {
			id.setQP(nil)
		}
		return p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Connect(id.raw, raw) })
	})
	return explain(err, id.saw(EventRouteResolved), missing)
}

// Accept accepts a connection request; see rdma_accept(3). EventEstablished
// follows, except for datagrams.
func (id *ID) Accept(p ConnParam) error { return id.accept(p, false) }

// accept is like Accept. movedQP says that the caller has changed the queue
// pair's state itself. If it is set, librdmacm does not see the queue pair
// during the call.
func (id *ID) accept(p ConnParam, movedQP bool) error {
	return id.answer("rdma_accept", func() error {
		if p.QPNum == 0 && !id.hasQP {
			return errStep("rdma_accept", "", "create a queue pair")
		}
		if err := id.checkPrivateData(limitsOfReply, p.PrivateData); err != nil {
			return cerr.Argument("rdma_accept", "", err)
		}
		if movedQP {
			defer id.setQP(id.raw.Qp)
			id.setQP(nil)
		}
		err := p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Accept(id.raw, raw) })
		id.answered = id.answered || err == nil
		return err
	})
}

// Reject rejects a connection request; see rdma_reject(3). The peer gets
// ReasonConsumer and the private data, of up to 148 bytes, or 136 for
// datagrams. If the peer has given up, Reject fails with an error matching
// syscall.ECONNRESET. The caller must still close the ID.
func (id *ID) Reject(privateData []byte) error {
	return id.reject("rdma_reject", librdmacm.Reject, privateData)
}

// RejectECE rejects a connection request, like Reject, because of the
// enhancements that the peer asked for; see rdma_reject_ece(3). The peer gets
// ReasonVendorOption and may ask again for other enhancements.
func (id *ID) RejectECE(privateData []byte) error {
	return id.reject("rdma_reject_ece", librdmacm.RejectEce, privateData)
}

func (id *ID) reject(op string, call func(*librdmacm.CmId, unsafe.Pointer, uint8) error, privateData []byte) error {
	isGone := false
	err := id.answer(op, func() error {
		if err := id.checkPrivateData(limitsOfReject, privateData); err != nil {
			return cerr.Argument(op, "", err)
		}
		err := call(id.raw, unsafe.Pointer(unsafe.SliceData(privateData)), uint8(len(privateData)))
		// The kernel refuses only if there is no request, or no request any
		// more.
		isGone = errors.Is(err, syscall.EINVAL) && !id.answered
		id.answered = id.answered || err == nil
		return err
	})
	if isGone {
		return fmt.Errorf("%w: %w", backlog.ErrGone, err)
	}
	return err
}

// refuse rejects and closes a request that no caller takes.
func (id *ID) refuse() {
	_ = id.Reject(nil)
	_ = id.Close()
}

// shed is like refuse, and also tells the peer that it may try again.
func (id *ID) shed() {
	_ = id.Reject(fullMark)
	_ = id.Close()
}

// answer calls f, which calls C to answer the request that created the ID.
func (id *ID) answer(op string, f func() error) error {
	const missing = "receive a connection request"
	if id.self() == nil || id.request == nil {
		return errStep(op, id.name(), missing)
	}
	return id.callBound(op, missing, f)
}

// Establish completes a connection after EventConnectResponse, for a queue pair
// that CreateQP did not create; see rdma_establish(3).
func (id *ID) Establish() error {
	const missing = "connect"
	err := id.callBound("rdma_establish", missing, func() error {
		if id.qp.qp != nil { // connect has hidden the queue pair from C
			defer id.setQP(id.qp.qp.Raw())
		}
		return librdmacm.Establish(id.raw)
	})
	return explain(err, id.wasUp(), missing)
}

// Disconnect ends the connection and moves the ID's queue pair into the error
// state; see rdma_disconnect(3). EventDisconnected follows at both ends.
func (id *ID) Disconnect() error {
	const missing = "connect"
	err := id.callBound("rdma_disconnect", missing, func() error { return librdmacm.Disconnect(id.raw) })
	return explain(err, id.wasUp(), missing)
}

// Notify passes an event of a queue pair to the communication manager; see
// rdma_notify(3). Only ibverbs.EventCommEstablished has an effect: it completes
// the handshake when a message arrives before the handshake's last one. Notify
// fails with an error matching syscall.EISCONN if the connection is already up.
func (id *ID) Notify(event ibverbs.EventType) error {
	return id.callBound("rdma_notify", "accept", func() error { return librdmacm.Notify(id.raw, libibverbs.EventType(event)) })
}

// SetLocalECE sets the connection enhancements that this end offers or accepts;
// see rdma_set_local_ece(3). Call it before Connect or Accept, and only for an
// ID whose queue pair CreateQP did not create.
func (id *ID) SetLocalECE(ece ibverbs.ECE) error {
	return id.call(func() error { return librdmacm.SetLocalEce(id.raw, rawECE(ece)) })
}

// RemoteECE returns the enhancements that the peer offers, after
// EventConnectRequest, or has accepted, after EventConnectResponse; see
// rdma_get_remote_ece(3).
func (id *ID) RemoteECE() (ibverbs.ECE, error) {
	raw := rawECE(ibverbs.ECE{})
	err := id.call(func() error { return librdmacm.GetRemoteEce(id.raw, raw) })
	return ibverbs.ECE{VendorID: raw.VendorId, Options: raw.Options}, err
}

// JoinFlags selects how an ID joins a multicast group.
type JoinFlags = librdmacm.CmMcJoinFlags

// The ways to join a multicast group.
const (
	JoinFull     JoinFlags = librdmacm.RDMA_MC_JOIN_FLAG_FULLMEMBER          // send to the group and receive from it
	JoinSendOnly JoinFlags = librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER // send to the group only
)

// join is a group that an ID has joined or is joining. token identifies the
// group in C, which returns it with the group's events; so it is pinned.
type join struct {
	addr  *sockaddr // allocated separately, because C must not see the other fields
	flags JoinFlags
	value any
	token *uint64
	pin   runtime.Pinner
	path  atomic.Pointer[ibverbs.AHAttr] // path to the group, set when the ID has joined it
}

// joins maps the tokens of all groups in which an ID is to the groups.
var joins table[unsafe.Pointer, *join]

// JoinMulticast joins a multicast group; see rdma_join_multicast_ex(3). The ID
// must be for datagrams and bound to an address. EventMulticastJoin or
// EventMulticastError follows, with the value as Event.Value. If the ID has a
// queue pair, it receives the group's messages after EventMulticastJoin. Call
// LeaveMulticast even after EventMulticastError, and for a group that was lost
// later.
//
// JoinMulticast fails with an error matching syscall.EADDRINUSE if the ID is
// already in the group, and with one matching errors.ErrUnsupported for IPv6 on
// RoCE v2, which Linux does not support.
func (id *ID) JoinMulticast(group netip.Addr, flags JoinFlags, value any) error {
	sa, err := groupAddr("rdma_join_multicast", group)
	if err != nil {
		return err
	}
	return id.join(sa, group.String(), flags, value)
}

func groupAddr(op string, group netip.Addr) (*sockaddr, error) {
	if !group.Unmap().IsMulticast() {
		return nil, cerr.Refuse(op, group.String(), "the address is not that of a multicast group")
	}
	return newSockaddr(netip.AddrPortFrom(group, 0))
}

func (id *ID) join(group *sockaddr, name string, flags JoinFlags, value any) error {
	return id.callBound("rdma_join_multicast", "bind or resolve the address", func() error {
		if !id.isDatagram() {
			return cerr.Refuse("rdma_join_multicast", name, "the id is not for datagrams")
		}
		// C would keep two memberships. When the first one ended, the
		// queue pair would leave the group, and the second membership
		// would have no effect.
		if id.joined(group) >= 0 {
			return cerr.Argument("rdma_join_multicast", name, cerr.InvalidAs(syscall.EADDRINUSE, "the id is in the group already"))
		}
		j := &join{addr: group, flags: flags, value: value, token: new(uint64)}
		j.pin.Pin(j.token)
		joins.store(unsafe.Pointer(j.token), j)
		if err := j.do(id); err != nil {
			j.forget()
			return wrap(name, err)
		}
		id.joins = append(id.joins, j)
		return nil
	})
}

func (j *join) forget() {
	joins.delete(unsafe.Pointer(j.token))
	j.pin.Unpin()
}

func (j *join) do(id *ID) error {
	if j.flags == JoinFull {
		return librdmacm.JoinMulticast(id.raw, j.addr.ptr(), unsafe.Pointer(j.token))
	}
	attr := &librdmacm.CmJoinMcAttrEx{
		CompMask:  librdmacm.RDMA_CM_JOIN_MC_ATTR_ADDRESS | librdmacm.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		JoinFlags: j.flags, Addr: j.addr.ptr(),
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(attr.Addr)
	return librdmacm.JoinMulticastEx(id.raw, attr, unsafe.Pointer(j.token))
}

// LeaveMulticast leaves a group that JoinMulticast joined, or cancels the join;
// see rdma_leave_multicast(3). It fails with an error matching
// syscall.EADDRNOTAVAIL if the ID is not in the group.
func (id *ID) LeaveMulticast(group netip.Addr) error {
	sa, err := groupAddr("rdma_leave_multicast", group)
	if err != nil {
		return err
	}
	return id.leave(sa, group.String())
}

func (id *ID) leave(group *sockaddr, name string) error {
	return id.callBound("rdma_leave_multicast", "join", func() error {
		i := id.joined(group)
		if i < 0 {
			return cerr.Argument("rdma_leave_multicast", name, cerr.InvalidAs(syscall.EADDRNOTAVAIL, "the id is not in the group"))
		}
		return wrap(name, id.leaveAt(i))
	})
}

func (id *ID) joined(group *sockaddr) int {
	return slices.IndexFunc(id.joins, func(j *join) bool { return *j.addr == *group })
}

// leaveAt leaves a group, and forgets it even if that fails. C waits until the
// group's events are acknowledged, which happens at once.
func (id *ID) leaveAt(i int) error {
	j := id.joins[i]
	id.joins = slices.Delete(id.joins, i, i+1)
	defer j.forget()
	err := librdmacm.LeaveMulticast(id.raw, j.addr.ptr())
	// C first takes the queue pair out of the group. That is too early if a
	// goroutine is just reading the event that puts the queue pair into the
	// group.
	if path := j.path.Load(); path != nil && id.hasQP && j.flags != JoinSendOnly {
		var gid libibverbs.Gid
		*gid.Raw() = path.DGID
		_ = libibverbs.DetachMcast(id.rawQP(), &gid, path.DLID) // may fail: the queue pair need not be in the group
	}
	return err
}

// leaveAll leaves all multicast groups. A queue pair cannot be destroyed while
// it is in a group, and librdmacm would leak the memory of the groups of an ID
// that is destroyed. If a group cannot be left, destroying the ID fails.
func (id *ID) leaveAll() {
	for len(id.joins) > 0 {
		_ = id.leaveAt(0)
	}
}

func (id *ID) rawQP() *libibverbs.Qp {
	defer id.lockChannel().Unlock()
	return id.raw.Qp
}

// Migrate makes the ID deliver its events to another channel; see
// rdma_migrate_id(3). Unread events move with it, in order, and so do
// connection requests. However, the kernel loses a request that reaches a
// listener at the very moment of the move; after a while, the peer gets
// EventUnreachable.
//
// Migrate fails if a Conn, a DatagramConn, an endpoint.Endpoint or a handled.ID
// reads the ID's events. An endpoint.Endpoint has its own Migrate.
func (id *ID) Migrate(to *EventChannel) error {
	if err := id.checkOwnEvents(); err != nil {
		return err
	}
	if err := to.self().Use(); err != nil {
		return fmt.Errorf("rdma_migrate_id: channel: %w", err)
	}
	defer to.object.Done()
	defer to.hold(id)()
	return id.migrate(to)
}

// checkOwnEvents returns an error if a dispatcher reads the ID's events instead
// of the program.
func (id *ID) checkOwnEvents() error {
	if err := id.self().Use(); err != nil {
		return err
	}
	defer id.object.Done()
	if id.channel.Load().dispatched {
		return cerr.Refuse("rdma_migrate_id", id.name(), "the id's events are read for an endpoint.Endpoint, a handled.ID, a Conn or a DatagramConn")
	}
	return nil
}

// migrate moves the ID to a channel that is in use and holds the ID's events.
func (id *ID) migrate(to *EventChannel) error {
	return id.call(func() error {
		from := id.channel.Load()
		if from == to {
			return nil
		}
		defer from.hold(id)()
		to.put(id) // before the first event can arrive there
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

// migrateC moves C's ID. C waits until the events that were read are
// acknowledged, which happens at once.
//
// Since Linux 5.10, the kernel moves the event of an unread request, but not
// the request's new ID. Without that ID, C cannot use the request, and drops it
// silently. So migrateC reads everything first. Dispatchers read all the time
// and never move a listener, so a move between them needs no reading.
func (id *ID) migrateC(from, to *EventChannel) error {
	if !from.dispatched || !to.dispatched {
		if err := drain(from, to); err != nil {
			return err
		}
	}
	return moveC(id, from, to)
}

// migrating guards the locking of two channels.
var migrating sync.Mutex

// moveC moves C's ID while no goroutine reads an event of the channels. C moves
// the ID in the kernel first. Until C has recorded that, it would ask the
// kernel about a new event of the ID by the wrong channel, in vain, and report
// a failure, or drop a request.
func moveC(id *ID, from, to *EventChannel) error {
	migrating.Lock()
	defer migrating.Unlock()
	for _, ch := range []*EventChannel{from, to} {
		ch.mu.Lock()
		defer ch.mu.Unlock()
	}
	return librdmacm.MigrateId(id.raw, to.raw)
}

// drain reads the events that C has for the channels, so that the channels hand
// them out later.
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

// bring puts events that were already read at the front of another channel.
// Connection requests bring their new IDs with them.
func (id *ID) bring(to *EventChannel, events []*Event) {
	var releases []func()
	events = slices.DeleteFunc(events, func(ev *Event) bool {
		if ev.Type != EventConnectRequest {
			return false
		}
		releases = append(releases, to.hold(ev.ID)) // until the request is there
		if ev.ID.migrate(to) == nil {
			return false
		}
		ev.ID.shed()
		return true
	})
	defer func() {
		for _, release := range releases {
			release()
		}
	}()
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

// leave removes the ID's events from the events that were already read, and
// returns the ID's events.
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

// note records that an event was read.
func (id *ID) note(t EventType) { id.seen.Or(1 << t) }

// saw reports whether an event of one of the types was read.
func (id *ID) saw(types ...EventType) bool {
	return id != nil && slices.ContainsFunc(types, func(t EventType) bool { return id.seen.Load()&(1<<t) != 0 })
}

// wasUp reports whether the ID has, or once had, a connection.
func (id *ID) wasUp() bool { return id.saw(EventEstablished, EventConnectResponse) }

// isOver reports whether the ID's connection has ended, or was rejected.
func (id *ID) isOver() bool {
	return id.saw(EventDisconnected, EventRejected, EventTimewaitExit, EventDeviceRemoval)
}

// errExists returns the error for creating an object that the ID already has.
// what is the kind of object.
func errExists(op, object, what string) error {
	return cerr.Refuse(op, object, "the id has a %s already", what)
}

// errStep returns the error for a call that came too early, in which C would
// follow a null pointer. missing is the step that must come first.
func errStep(op, object, missing string) error {
	return cerr.Refuse(op, object, "%s first", missing)
}

// explain adds to an error of C which step must come first. missing is that
// step, and done says whether it was done.
func explain(err error, done bool, missing string) error {
	if e, ok := err.(*ibverbs.Error); ok && !done && e.Errno == syscall.EINVAL {
		return fmt.Errorf("%w: %s first", err, missing)
	}
	return err
}

// WriteUserEvent adds an EventUser to the ID's events, with the status as
// Event.Status and arg as Event.Arg; see rdma_write_cm_event(3). It needs
// kernel support and rdma-core 60. Otherwise, it fails with an error matching
// errors.ErrUnsupported.
func (id *ID) WriteUserEvent(status int, arg uint64) error {
	return id.call(func() error {
		return librdmacm.WriteCmEvent(id.raw, EventUser, int32(status), arg)
	})
}
