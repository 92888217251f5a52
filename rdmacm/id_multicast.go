package rdmacm

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
