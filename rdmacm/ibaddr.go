// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// An IBAddr is a native InfiniBand address (AF_IB), used instead of an IP
// address and port; see rdma_cm(7). Few programs need one: RoCE and InfiniBand
// ports have IP addresses, too. Numbers are in host byte order.
//
// A program with such addresses creates an ID in [PortSpaceIB] and uses the
// methods of [ID] whose names have IB. The same events report the results.
// [GetAddrInfo] returns such addresses for [FamilyIB].
type IBAddr struct {
	GID           ibverbs.GID
	ServiceID     uint64       // the upper bits are the port space, the lowest 16 the port
	ServiceIDMask uint64       // significant bits of ServiceID; 0 means all of them
	PKey          ibverbs.PKey // 0 means ibverbs.PKeyDefault
	FlowInfo      uint32
	ScopeID       uint64
}

// String returns the GID and the service ID.
func (a IBAddr) String() string { return fmt.Sprintf("%s service %#x", a.GID, a.ServiceID) }

func (a IBAddr) sockaddr() *sockaddr {
	s := new(sockaddr)
	ib := (*libibverbs.SockaddrIb)(unsafe.Pointer(s))
	*ib = libibverbs.SockaddrIb{
		SibFamily: libibverbs.AF_IB, SibPkey: libibverbs.NewBe16(uint16(a.PKey)), SibFlowinfo: libibverbs.NewBe32(a.FlowInfo),
		SibSid: libibverbs.NewBe64(a.ServiceID), SibSidMask: libibverbs.NewBe64(a.ServiceIDMask), SibScopeId: a.ScopeID,
	}
	if a.PKey == 0 {
		ib.SibPkey = libibverbs.NewBe16(uint16(ibverbs.PKeyDefault))
	}
	if a.ServiceIDMask == 0 {
		ib.SibSidMask = libibverbs.NewBe64(^uint64(0))
	}
	*(*ibverbs.GID)(unsafe.Pointer(&ib.SibAddr)) = a.GID
	return s
}

// ibAddr converts an address from C's form. It returns the zero value for other
// families.
func ibAddr(s *librdmacm.Sockaddr) IBAddr {
	if s.SaFamily != libibverbs.AF_IB {
		return IBAddr{}
	}
	ib := (*libibverbs.SockaddrIb)(unsafe.Pointer(s))
	return IBAddr{
		GID: *(*ibverbs.GID)(unsafe.Pointer(&ib.SibAddr)), ServiceID: ib.SibSid.Host(), ServiceIDMask: ib.SibSidMask.Host(),
		PKey: ibverbs.PKey(ib.SibPkey.Host()), FlowInfo: ib.SibFlowinfo.Host(), ScopeID: ib.SibScopeId,
	}
}

// BindIB binds the ID to a local InfiniBand address, like BindAddr; see
// rdma_bind_addr(3). A zero GID means every GID of every device.
func (id *ID) BindIB(addr IBAddr) error { return id.bind(addr.sockaddr(), addr.String()) }

// ResolveIB finds the device for a destination, like ResolveAddr; see
// rdma_resolve_addr(3). EventAddrResolved or EventAddrError follows. src may be
// nil.
func (id *ID) ResolveIB(src *IBAddr, dst IBAddr, timeout time.Duration) error {
	if src == nil {
		return id.resolveAddr(nil, dst.sockaddr(), timeout, dst.String())
	}
	return id.resolveAddr(src.sockaddr(), dst.sockaddr(), timeout, src.String()+" to "+dst.String())
}

// JoinMulticastIB joins a multicast group, like JoinMulticast, but uses the
// group's GID as it is instead of mapping an IP address to one.
func (id *ID) JoinMulticastIB(group IBAddr, flags JoinFlags, value any) error {
	return id.join(group.sockaddr(), group.String(), flags, value)
}

// LeaveMulticastIB leaves a group that JoinMulticastIB joined, or cancels the
// join. It fails with an error matching syscall.EADDRNOTAVAIL if the ID is not
// in the group.
func (id *ID) LeaveMulticastIB(group IBAddr) error {
	return id.leave(group.sockaddr(), group.String())
}

// LocalIBAddr returns the local address, or the zero value if the ID has no
// InfiniBand address.
func (id *ID) LocalIBAddr() IBAddr { return address(id, librdmacm.GetLocalAddr, ibAddr) }

// RemoteIBAddr returns the peer's address, or the zero value if it has no
// InfiniBand address.
func (id *ID) RemoteIBAddr() IBAddr { return address(id, librdmacm.GetPeerAddr, ibAddr) }
