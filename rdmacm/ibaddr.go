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
// address and port; see rdma_cm(7). Numbers are in host byte order.
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

func (id *ID) bindIB(addr IBAddr) error { return id.bind(addr.sockaddr(), addr.String()) }

func (id *ID) resolveIB(src *IBAddr, dst IBAddr, timeout time.Duration) error {
	if src == nil {
		return id.resolveAddr(nil, dst.sockaddr(), timeout, dst.String())
	}
	return id.resolveAddr(src.sockaddr(), dst.sockaddr(), timeout, src.String()+" to "+dst.String())
}

func (id *ID) joinIB(group IBAddr, flags JoinFlags, value any) error {
	return id.join(group.sockaddr(), group.String(), flags, value)
}

func (id *ID) leaveIB(group IBAddr) error { return id.leave(group.sockaddr(), group.String()) }
