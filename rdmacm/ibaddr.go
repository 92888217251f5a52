package rdmacm

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
)

// IBAddr is an address of InfiniBand's own, AF_IB, in place of an IP address
// and a port; see rdma_cm(7). Numbers have the host's byte order.
type IBAddr struct {
	GID           ibverbs.GID
	ServiceID     uint64       // what listens there: its upper bits say the port space, its lowest 16 the port
	ServiceIDMask uint64       // the bits of ServiceID that count; the zero value is all of them
	PKey          ibverbs.PKey // the zero value is ibverbs.PKeyDefault
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

// ibAddr reads an address from C. One of another family is the zero value.
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
