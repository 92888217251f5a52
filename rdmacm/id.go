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
	"github.com/verbena-go/verbena/internal/cerr"
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

// bindInfo gives the id the source as its address.
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

// routeInfo starts to find the path to the destination, unless that is known.
func (id *ID) routeInfo(info AddrInfo, timeout time.Duration) error {
	if len(info.Paths) > 0 {
		return id.SetIBPaths(info.Paths...)
	}
	return id.ResolveRoute(timeout)
}

// LocalAddr returns the id's own address, the zero value while it has none, or
// has one of InfiniBand's.
func (id *ID) LocalAddr() netip.AddrPort { return address(id, librdmacm.GetLocalAddr, addrPort) }

// RemoteAddr returns the peer's address, the zero value while there is none, or
// if it is one of InfiniBand's.
func (id *ID) RemoteAddr() netip.AddrPort { return address(id, librdmacm.GetPeerAddr, addrPort) }

// LocalIBAddr returns the id's own address of InfiniBand's, the zero value if it
// has none.
func (id *ID) LocalIBAddr() IBAddr { return address(id, librdmacm.GetLocalAddr, ibAddr) }

// RemoteIBAddr returns the peer's address of InfiniBand's, the zero value if it has
// none.
func (id *ID) RemoteIBAddr() IBAddr { return address(id, librdmacm.GetPeerAddr, ibAddr) }

func address[T any](
	id *ID, get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error), read func(*librdmacm.Sockaddr) T,
) (addr T) {
	if id.self().Use() != nil {
		return addr
	}
	defer id.object.Done()
	// Both a call of C and an event can be changing it.
	id.mu.Lock()
	defer id.mu.Unlock()
	defer id.lockChannel()()
	return addressOf(id, get, read)
}

// addressOf is address for a caller that holds id.mu and the channel's.
func addressOf[T any](
	id *ID, get func(*librdmacm.CmId) (*librdmacm.Sockaddr, error), read func(*librdmacm.Sockaddr) T,
) (addr T) {
	if sa, err := get(id.raw); err == nil {
		addr = read(sa)
	}
	return addr
}

// describe names the id by its addresses as far as it has any. The caller holds
// id.mu.
func (id *ID) describe() string {
	defer id.lockChannel()()
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

// name is describe for a caller that holds no lock, and does not wait for C.
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

// SetTOS sets the type of service, which stands in the IP header of RoCE and
// iWARP, and chooses the service level on InfiniBand; see rdma_set_option(3).
// It comes before ResolveRoute; accepted connections have the peer's.
func (id *ID) SetTOS(tos uint8) error { return setIDOption(id, librdmacm.RDMA_OPTION_ID_TOS, tos) }

// SetReuseAddr lets the id be bound to an address that another one has, which
// must have this set too; see rdma_set_option(3). Still only one of them can
// listen, after the others were closed. It comes before BindAddr.
func (id *ID) SetReuseAddr(on bool) error {
	return setIDOption(id, librdmacm.RDMA_OPTION_ID_REUSEADDR, number(on))
}

// SetAFOnly says whether an id that listens on every IPv6 address leaves IPv4
// alone, as IPV6_V6ONLY does for sockets; see rdma_set_option(3). It comes
// before BindAddr.
func (id *ID) SetAFOnly(on bool) error {
	return setIDOption(id, librdmacm.RDMA_OPTION_ID_AFONLY, number(on))
}

func number(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

// maxAckTimeout is 4.096 us * 2^31.
const maxAckTimeout = 4096 << 31

// SetAckTimeout sets for how long the queue pair waits for an acknowledgement
// before it sends again, rounded up to 4.096 us * 2^n, up to 2.4 hours; see
// rdma_set_option(3). It comes before Connect or Accept.
func (id *ID) SetAckTimeout(d time.Duration) error {
	if d <= 0 || d > maxAckTimeout {
		return cerr.Refuse("rdma_set_option", id.name(), "a timeout of %v, not from 1ns to %v", d, time.Duration(maxAckTimeout))
	}
	exponent := bits.Len64(uint64(d-1) / 4096)
	return setIDOption(id, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT, uint8(max(exponent, 1))) // 0 would be for ever
}

func setIDOption[T any](id *ID, option librdmacm.IDOption, value T) error {
	return id.setOption(librdmacm.RDMA_OPTION_ID, int32(option), unsafe.Pointer(&value), unsafe.Sizeof(value))
}

// SetIBPaths gives the id paths to the peer, in place of ResolveRoute, whose
// EventRouteResolved follows; see rdma_set_option(3). The first is used.
func (id *ID) SetIBPaths(paths ...libibverbs.PathData) error {
	if len(paths) == 0 {
		return cerr.Refuse("rdma_set_option", id.name(), "no path")
	}
	return id.setOption(librdmacm.RDMA_OPTION_IB, int32(librdmacm.RDMA_OPTION_IB_PATH),
		unsafe.Pointer(&paths[0]), unsafe.Sizeof(paths[0])*uintptr(len(paths)))
}

func (id *ID) setOption(level librdmacm.OptionLevel, option int32, value unsafe.Pointer, size uintptr) error {
	return id.call(func() error {
		return librdmacm.SetOption(id.raw, int32(level), option, value, uint64(size))
	})
}

// BindAddr gives the id a local address; see rdma_bind_addr(3). Port 0 lets
// the system choose one. An address without an IP stands for every address of
// every device, and so does a loopback address.
func (id *ID) BindAddr(addr netip.AddrPort) error {
	sa, err := newSockaddr(addr)
	if err != nil {
		return err
	}
	name := addr.String()
	if !addr.Addr().IsValid() {
		name = fmt.Sprintf(":%d", addr.Port()) // as Listen is given it
	}
	return id.bind(sa, name)
}

// BindIB gives the id a local address of InfiniBand's; see rdma_bind_addr(3).
// A zero GID stands for every one of every device.
func (id *ID) BindIB(addr IBAddr) error { return id.bind(addr.sockaddr(), addr.String()) }

func (id *ID) bind(sa *sockaddr, name string) error {
	// In an error it is this address that matters, which the id does not have yet.
	return id.call(func() error { return wrap(name, librdmacm.BindAddr(id.raw, sa.ptr())) })
}

// ResolveAddr finds the device and the hardware address for a destination; see
// rdma_resolve_addr(3). EventAddrResolved or EventAddrError follows, the latter
// after the timeout, which C has in milliseconds, at the latest. The source may
// be the zero value.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	if !dst.IsValid() {
		return cerr.Refuse("rdma_resolve_addr", id.name(), "no destination: dst is the zero AddrPort")
	}
	to, err := newSockaddr(dst)
	if err != nil {
		return err
	}
	if !src.IsValid() {
		return id.resolveAddr(nil, to, timeout, dst.String())
	}
	from, err := newSockaddr(src)
	if err != nil {
		return err
	}
	return id.resolveAddr(from, to, timeout, src.String()+" to "+dst.String())
}

// ResolveIB is ResolveAddr for addresses of InfiniBand's. src may be nil.
func (id *ID) ResolveIB(src *IBAddr, dst IBAddr, timeout time.Duration) error {
	if src == nil {
		return id.resolveAddr(nil, dst.sockaddr(), timeout, dst.String())
	}
	return id.resolveAddr(src.sockaddr(), dst.sockaddr(), timeout, src.String()+" to "+dst.String())
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
// EventRouteResolved or EventRouteError follows, the latter after the timeout at
// the latest. Where the InfiniBand address cache daemon runs, the call waits for
// its answer.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	const missing = "resolve the address"
	err := id.callBound("rdma_resolve_route", missing, func() error {
		return librdmacm.ResolveRoute(id.raw, milliseconds(timeout))
	})
	return explain(err, id.saw(EventAddrResolved), missing)
}

func milliseconds(d time.Duration) int32 {
	return int32(min(max(d.Milliseconds(), 1), 1<<31-1))
}

const opCreateQP = "rdma_create_qp"

// CreateQP makes a queue pair whose states follow the connection; see
// rdma_create_qp(3). It must be closed before the id.
func (id *ID) CreateQP(pd *ibverbs.PD, config ibverbs.QPConfig) (*ibverbs.QP, error) {
	if pd == nil {
		return nil, cerr.Nil(opCreateQP, "pd")
	}
	qp, err := newQP(pd, config, func(attr *libibverbs.QpInitAttrEx) (qp *libibverbs.Qp, destroy func() error, err error) {
		err = id.callBound(opCreateQP, "bind or resolve the address", func() error {
			if id.hasQP {
				return errExists(opCreateQP, "", "queue pair")
			}
			if id.verbs() != pd.Device().Raw() {
				return cerr.Refuse(opCreateQP, "", "the protection domain is not of the id's device: make it on that of ID.Context, rdmacm.Devices or Listener.Device")
			}
			if err := librdmacm.CreateQpEx(id.raw, attr); err != nil {
				return err
			}
			id.hasQP = true
			defer id.lockChannel()()
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
	*ibverbs.QP
	send, recv *ibverbs.CQ
	srq        *ibverbs.SRQ
}

// QP returns the queue pair that CreateQP has made, nil while there is none.
func (id *ID) QP() *ibverbs.QP {
	if id.self().Use() != nil {
		return nil
	}
	defer id.object.Done()
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.qp.QP
}

// needQP returns the queue pair for an operation that needs one.
func (id *ID) needQP(op string) (queuePair, error) {
	var qp queuePair
	err := id.call(func() error {
		if id.qp.QP == nil {
			return errStep(op, "", "create a queue pair")
		}
		qp = id.qp
		return nil
	})
	return qp, err
}

// destroyQP is what rdma_destroy_qp does, but for its silence about errors. The
// id forgets the queue pair before, because reading an event may change the
// state of the one that it has. The kernel may take a minute: the id is not
// locked meanwhile, so that nobody waits for that who has an event of it.
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
	defer id.lockChannel()()
	id.raw.Qp = qp
}

// InitQPAttr returns the attributes, and which they are, with which QP.Modify moves a
// queue pair that CreateQP has not made into a state of the connection; see
// rdma_init_qp_attr(3).
func (id *ID) InitQPAttr(state ibverbs.QPState) (ibverbs.QPAttr, ibverbs.QPAttrMask, error) {
	raw, mask, err := id.initQPAttr(state)
	if err != nil {
		return ibverbs.QPAttr{}, 0, err
	}
	return qpAttrOf(raw), mask, nil
}

// initQPAttr is InitQPAttr with the attributes as C has them.
func (id *ID) initQPAttr(state ibverbs.QPState) (*libibverbs.QpAttr, ibverbs.QPAttrMask, error) {
	attr := &libibverbs.QpAttr{QpState: state}
	var mask int32
	err := id.callBound("rdma_init_qp_attr", "bind or resolve the address", func() (err error) {
		mask, err = librdmacm.InitQpAttr(id.raw, attr)
		return err
	})
	return attr, ibverbs.QPAttrMask(mask), err
}

func rawECE(ece ibverbs.ECE) *libibverbs.Ece {
	return &libibverbs.Ece{VendorId: ece.VendorID, Options: ece.Options}
}

// ConnParam is what the two ends of a connection tell each other; see
// rdma_connect(3). The zero value is usable.
type ConnParam struct {
	// PrivateData goes to the peer; see Config.PrivateData for how much.
	PrivateData []byte
	// ResponderResources is how many RDMA reads and atomics the peer may have
	// under way here, and InitiatorDepth how many this end may have under way
	// there. 0 stands for as many as the device and, for Accept, the peer allow;
	// negative is none.
	ResponderResources, InitiatorDepth int
	// FlowControl lets the device tell the peer how many receives are posted.
	FlowControl bool
	// RetryCount is how often either end sends again what nobody acknowledges.
	// That of Connect counts, not that of Accept. 0 stands for 6; negative is
	// never; 7 is the most, and with Soft-RoCE means for ever.
	RetryCount int
	// PeerRNRRetryCount is how often the peer sends again while there is no
	// receive here. 0 stands for ibverbs.RNRRetryForever; negative is never.
	PeerRNRRetryCount int

	// QPNum is the number of a queue pair that CreateQP has not made, and SRQ
	// says that it takes its receives from a shared queue. With one that
	// CreateQP has made, neither has an effect.
	QPNum uint32
	SRQ   bool
}

// orDefault returns what a count stands for whose zero value is the default, and
// whose negative values are none, within the most that there may be.
func orDefault(count, zero, most int) int { return min(max(cmp.Or(count, zero), 0), most) }

// with calls f with the parameters as C takes them. The length of the private
// data has been checked.
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

// Listen makes the id wait for connection requests, which come as
// EventConnectRequest; see rdma_listen(3). Up to backlog requests wait to be
// read from the channel, 128 for 0, and at most net.rdma_ucm.max_backlog of the
// system. The kernel does not answer further ones, and their peers ask again some
// seconds later.
func (id *ID) Listen(backlog int) error {
	backlog = backlogOf(backlog)
	return id.listen(backlog, backlog)
}

// backlogOf returns how many requests may wait where the caller has said backlog.
func backlogOf(backlog int) int {
	if backlog <= 0 {
		return defaultBacklog
	}
	return min(backlog, maxBacklog)
}

// unread is how many requests may wait to be read by who reads them at once, to
// keep or to reject them: as many as the system allows, because the kernel does
// not answer those for which it has no room.
const unread = 0

// listen is Listen where up to backlog requests wait for the program, and up to
// kernel to be read.
func (id *ID) listen(backlog, kernel int) error {
	return id.call(func() error {
		before := id.backlog.Load()
		id.backlog.Store(int32(backlog)) // before a request can come
		err := librdmacm.Listen(id.raw, int32(kernel))
		if err != nil {
			id.backlog.Store(before)
		}
		return err
	})
}

// Connect asks the peer for a connection; see rdma_connect(3).
// EventEstablished follows, or EventConnectResponse if the id has no queue
// pair of its own, or an event that reports a failure. An id for datagrams asks
// for the peer's queue pair, which EventEstablished has.
func (id *ID) Connect(p ConnParam) error { return id.connect(p, false) }

// connect is Connect. If the caller moves the queue pair through its states,
// librdmacm does not see it until Establish.
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

// Accept answers a connection request; see rdma_accept(3). EventEstablished
// follows, but not for datagrams.
func (id *ID) Accept(p ConnParam) error { return id.accept(p, false) }

// accept is Accept. If the caller has moved the queue pair through its states,
// librdmacm does not see it meanwhile.
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
		return p.with(func(raw *librdmacm.ConnParam) error { return librdmacm.Accept(id.raw, raw) })
	})
}

// Reject refuses a connection request; see rdma_reject(3). The peer gets the
// private data, of up to 148 bytes, or 136 for datagrams, and the reason
// ReasonConsumer. The id still has to be closed.
func (id *ID) Reject(privateData []byte) error {
	return id.reject("rdma_reject", librdmacm.Reject, privateData)
}

// RejectECE is Reject because of the enhancements that the peer asked for, with
// the reason ReasonVendorOption; see rdma_reject_ece(3). The peer may try again
// with other ones.
func (id *ID) RejectECE(privateData []byte) error {
	return id.reject("rdma_reject_ece", librdmacm.RejectEce, privateData)
}

func (id *ID) reject(op string, call func(*librdmacm.CmId, unsafe.Pointer, uint8) error, privateData []byte) error {
	return id.answer(op, func() error {
		if err := id.checkPrivateData(limitsOfReject, privateData); err != nil {
			return cerr.Argument(op, "", err)
		}
		return call(id.raw, unsafe.Pointer(unsafe.SliceData(privateData)), uint8(len(privateData)))
	})
}

// refuse rejects and closes a request that nobody wants.
func (id *ID) refuse() {
	_ = id.Reject(nil)
	_ = id.Close()
}

// answer makes a call of C that answers the request that the id came with.
func (id *ID) answer(op string, f func() error) error {
	const missing = "receive a connection request"
	if id.self() == nil || id.request == nil {
		return errStep(op, id.name(), missing)
	}
	return id.callBound(op, missing, f)
}

// Establish completes a connection whose queue pair was not made by CreateQP,
// after EventConnectResponse; see rdma_establish(3).
func (id *ID) Establish() error {
	const missing = "connect"
	err := id.callBound("rdma_establish", missing, func() error {
		if id.qp.QP != nil { // which connect has hidden
			defer id.setQP(id.qp.Raw())
		}
		return librdmacm.Establish(id.raw)
	})
	return explain(err, id.wasUp(), missing)
}

// Disconnect ends the connection and moves the id's queue pair into the error
// state; see rdma_disconnect(3). EventDisconnected follows at both ends.
func (id *ID) Disconnect() error {
	const missing = "connect"
	err := id.callBound("rdma_disconnect", missing, func() error { return librdmacm.Disconnect(id.raw) })
	return explain(err, id.wasUp(), missing)
}

// Notify tells the communication manager of an event that a queue pair had,
// which only matters for ibverbs.EventCommEstablished: a message that arrives
// before the last one of the handshake completes that. See rdma_notify(3). It
// fails with syscall.EISCONN if the connection is up already.
func (id *ID) Notify(event ibverbs.EventType) error {
	return id.callBound("rdma_notify", "accept", func() error { return librdmacm.Notify(id.raw, libibverbs.EventType(event)) })
}

// SetLocalECE says which enhancements of the connection this end offers or
// takes; see rdma_set_local_ece(3). It comes before Connect or Accept, and is
// for ids whose queue pair was not made by CreateQP.
func (id *ID) SetLocalECE(ece ibverbs.ECE) error {
	return id.call(func() error { return librdmacm.SetLocalEce(id.raw, rawECE(ece)) })
}

// RemoteECE returns the enhancements that the peer offers or has taken, as of
// EventConnectRequest or EventConnectResponse; see rdma_get_remote_ece(3).
func (id *ID) RemoteECE() (ibverbs.ECE, error) {
	raw := rawECE(ibverbs.ECE{})
	err := id.call(func() error { return librdmacm.GetRemoteEce(id.raw, raw) })
	return ibverbs.ECE{VendorID: raw.VendorId, Options: raw.Options}, err
}

// JoinFlags say how to be in a multicast group.
type JoinFlags = librdmacm.CmMcJoinFlags

// The ways to be in a multicast group.
const (
	JoinFull     JoinFlags = librdmacm.RDMA_MC_JOIN_FLAG_FULLMEMBER          // send and receive
	JoinSendOnly JoinFlags = librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER // the group's messages do not come here
)

// join is a group that an id is in, or wants to be. C keeps its token and gives
// it back with the events of the group; so that is pinned.
type join struct {
	addr  *sockaddr // of its own, because C must not see the rest
	flags JoinFlags
	value any
	token *uint64
	pin   runtime.Pinner
	path  atomic.Pointer[ibverbs.AHAttr] // to the group, when it is joined
}

// joins finds a group by its token, for as long as the id is in it.
var joins sync.Map // unsafe.Pointer -> *join

// JoinMulticast makes the id, which must be for datagrams and bound to an
// address, a member of a multicast group; see rdma_join_multicast_ex(3).
// EventMulticastJoin or EventMulticastError follows, with the value as
// Event.Value. If the id has a queue pair, that receives the group's messages
// from then on. A group that could not be joined, or is lost later, must be left
// all the same.
//
// It fails with syscall.EADDRINUSE if the id is in the group, and with
// errors.ErrUnsupported for IPv6 on RoCE v2, where Linux does not have it.
func (id *ID) JoinMulticast(group netip.Addr, flags JoinFlags, value any) error {
	sa, err := groupAddr("rdma_join_multicast", group)
	if err != nil {
		return err
	}
	return id.join(sa, group.String(), flags, value)
}

// JoinMulticastIB is JoinMulticast for an address of InfiniBand's.
func (id *ID) JoinMulticastIB(group IBAddr, flags JoinFlags, value any) error {
	return id.join(group.sockaddr(), group.String(), flags, value)
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
		// C would keep two memberships, and with the first one's end the queue
		// pair would be out of the group for both.
		if id.joined(group) >= 0 {
			return cerr.Argument("rdma_join_multicast", name, cerr.InvalidAs(syscall.EADDRINUSE, "the id is in the group already"))
		}
		j := &join{addr: group, flags: flags, value: value, token: new(uint64)}
		j.pin.Pin(j.token)
		joins.Store(unsafe.Pointer(j.token), j)
		if err := j.do(id); err != nil {
			j.forget()
			return wrap(name, err)
		}
		id.joins = append(id.joins, j)
		return nil
	})
}

func (j *join) forget() {
	joins.Delete(unsafe.Pointer(j.token))
	j.pin.Unpin()
}

func (j *join) do(id *ID) error {
	if j.flags == JoinFull {
		return librdmacm.JoinMulticast(id.raw, j.addr.ptr(), unsafe.Pointer(j.token))
	}
	attr := &librdmacm.CmJoinMcAttrEx{
		CompMask:  uint32(librdmacm.RDMA_CM_JOIN_MC_ATTR_ADDRESS | librdmacm.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS),
		JoinFlags: uint32(j.flags), Addr: j.addr.ptr(),
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(attr.Addr)
	return librdmacm.JoinMulticastEx(id.raw, attr, unsafe.Pointer(j.token))
}

// LeaveMulticast ends what JoinMulticast began; see rdma_leave_multicast(3). It
// fails with syscall.EADDRNOTAVAIL if the id is not in the group.
func (id *ID) LeaveMulticast(group netip.Addr) error {
	sa, err := groupAddr("rdma_leave_multicast", group)
	if err != nil {
		return err
	}
	return id.leave(sa, group.String())
}

// LeaveMulticastIB ends what JoinMulticastIB began.
func (id *ID) LeaveMulticastIB(group IBAddr) error { return id.leave(group.sockaddr(), group.String()) }

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

// leaveAt leaves a group. C waits until its events are acknowledged, as they
// are at once. It forgets the group even if it fails.
func (id *ID) leaveAt(i int) error {
	j := id.joins[i]
	id.joins = slices.Delete(id.joins, i, i+1)
	defer j.forget()
	err := librdmacm.LeaveMulticast(id.raw, j.addr.ptr())
	// C takes the queue pair out of the group first, which is too early if just
	// then the event that puts it there is being read.
	if path := j.path.Load(); path != nil && id.hasQP && j.flags != JoinSendOnly {
		var gid libibverbs.Gid
		*gid.Raw() = path.DGID
		_ = libibverbs.DetachMcast(id.rawQP(), &gid, path.DLID) // as a rule, it is not in the group
	}
	return err
}

// leaveAll leaves all groups: a queue pair is not destroyed before, and C would
// lose its memory of them with the id. If that fails, destroying will say so.
func (id *ID) leaveAll() {
	for len(id.joins) > 0 {
		_ = id.leaveAt(0)
	}
}

func (id *ID) rawQP() *libibverbs.Qp {
	defer id.lockChannel()()
	return id.raw.Qp
}

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

// note keeps that an event was read.
func (id *ID) note(t EventType) { id.seen.Or(1 << t) }

// saw reports whether an event of one of these types was read.
func (id *ID) saw(types ...EventType) bool {
	return id != nil && slices.ContainsFunc(types, func(t EventType) bool { return id.seen.Load()&(1<<t) != 0 })
}

// wasUp reports whether the id has had a connection, isOver whether that has
// ended.
func (id *ID) wasUp() bool { return id.saw(EventEstablished, EventConnectResponse) }

func (id *ID) isOver() bool {
	return id.saw(EventDisconnected, EventRejected, EventTimewaitExit, EventDeviceRemoval)
}

// errExists says that the id has what was to be made.
func errExists(op, object, what string) error {
	return cerr.Refuse(op, object, "the id has a %s already", what)
}

// errStep says that a call came too early. C would follow a null pointer.
func errStep(op, object, missing string) error {
	return cerr.Refuse(op, object, "%s first", missing)
}

// explain adds to C's refusal of a call the step that has to come first, if that
// was not done.
func explain(err error, done bool, missing string) error {
	if e, ok := err.(*ibverbs.Error); ok && !done && e.Errno == syscall.EINVAL {
		return fmt.Errorf("%w: %s first", err, missing)
	}
	return err
}

// WriteUserEvent puts an EventUser with a status and a number, Event.Arg, among
// the id's events, for whoever reads its channel; see rdma_write_cm_event(3).
// It needs rdma-core 60 and a kernel that has it, and gives
// errors.ErrUnsupported without the former.
func (id *ID) WriteUserEvent(status int, arg uint64) error {
	return id.call(func() error {
		return librdmacm.WriteCmEvent(id.raw, EventUser, int32(status), arg)
	})
}
