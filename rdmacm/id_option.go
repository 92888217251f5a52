package rdmacm

import (
	"math/bits"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
