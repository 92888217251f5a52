// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/enum"
)

// AccessFlags say how a memory region may be accessed; combine them with |.
type AccessFlags = libibverbs.AccessFlags

// The access flags. A region that peers may write to or operate on atomically
// also needs AccessLocalWrite. Local reads are always allowed.
const (
	AccessLocalWrite      AccessFlags = libibverbs.IBV_ACCESS_LOCAL_WRITE      // the device may write to the region
	AccessRemoteWrite     AccessFlags = libibverbs.IBV_ACCESS_REMOTE_WRITE     // peers may write
	AccessRemoteRead      AccessFlags = libibverbs.IBV_ACCESS_REMOTE_READ      // peers may read
	AccessRemoteAtomic    AccessFlags = libibverbs.IBV_ACCESS_REMOTE_ATOMIC    // peers may use atomic operations
	AccessWindowBind      AccessFlags = libibverbs.IBV_ACCESS_MW_BIND          // memory windows may be bound to the region
	AccessZeroBased       AccessFlags = libibverbs.IBV_ACCESS_ZERO_BASED       // work requests address the region from 0
	AccessOnDemand        AccessFlags = libibverbs.IBV_ACCESS_ON_DEMAND        // pages are not pinned, but fetched on demand
	AccessHugeTLB         AccessFlags = libibverbs.IBV_ACCESS_HUGETLB          // with AccessOnDemand: the whole region is in huge pages
	AccessFlushGlobal     AccessFlags = libibverbs.IBV_ACCESS_FLUSH_GLOBAL     // peers may flush writes to global visibility
	AccessFlushPersistent AccessFlags = libibverbs.IBV_ACCESS_FLUSH_PERSISTENT // peers may flush writes to persistent memory
	AccessRelaxedOrdering AccessFlags = libibverbs.IBV_ACCESS_RELAXED_ORDERING // the device may reorder its accesses
)

// NodeType is the kind of a device. Package libibverbs has the values, such as
// IBV_NODE_CA.
type NodeType = libibverbs.NodeType

// Transport is the protocol family of a device. Package libibverbs has the
// values, such as IBV_TRANSPORT_IB.
type Transport = libibverbs.TransportType

// Rate limits the speed of a path. Package libibverbs has the values, such as
// IBV_RATE_100_GBPS.
type Rate = libibverbs.Rate

// MTU is the maximum transmission unit of a path, in C's encoding; see Bytes.
type MTU libibverbs.Mtu

// The MTUs.
const (
	MTU256  MTU = MTU(libibverbs.IBV_MTU_256)
	MTU512  MTU = MTU(libibverbs.IBV_MTU_512)
	MTU1024 MTU = MTU(libibverbs.IBV_MTU_1024)
	MTU2048 MTU = MTU(libibverbs.IBV_MTU_2048)
	MTU4096 MTU = MTU(libibverbs.IBV_MTU_4096)
)

// Bytes returns the MTU in bytes, or 0 if m is invalid.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

var mtus = enum.Values{Type: "MTU", Names: []enum.Name{
	{Value: 0, Name: "0"},
	{Value: int64(MTU256), Name: "256"},
	{Value: int64(MTU512), Name: "512"},
	{Value: int64(MTU1024), Name: "1024"},
	{Value: int64(MTU2048), Name: "2048"},
	{Value: int64(MTU4096), Name: "4096"},
}}

// String returns the MTU in bytes, such as 4096, 0 for none, or MTU(n) for
// another value.
func (m MTU) String() string { return mtus.String(int64(m)) }

// GUID is a 64-bit identifier of a device or port, in the host's byte order.
type GUID uint64

// String returns four groups of four hexadecimal digits, such as
// 0002:c903:0001:4aef.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// OUI returns the upper 24 bits, which identify the manufacturer.
func (g GUID) OUI() uint32 { return uint32(g >> 40) }

// IsReserved reports whether the GUID is 0, which identifies nothing: the
// driver has not set it.
func (g GUID) IsReserved() bool { return g == 0 }

// GID is the address of a port, 16 bytes in network byte order.
type GID [16]byte

// Addr returns the GID as an IP address. For RoCE v2 it is the address of the
// network interface.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the GID is zero, like an empty table entry.
func (g GID) IsZero() bool { return g == GID{} }

// String returns eight groups of four hexadecimal digits.
func (g GID) String() string { return netip.AddrFrom16(g).StringExpanded() }

// QPType is the type of a queue pair, which says what service it provides.
type QPType = libibverbs.QpType

// The types of queue pairs.
const (
	QPTypeRC        QPType = libibverbs.IBV_QPT_RC         // reliable connection
	QPTypeUC        QPType = libibverbs.IBV_QPT_UC         // unreliable connection
	QPTypeUD        QPType = libibverbs.IBV_QPT_UD         // unreliable datagram
	QPTypeRawPacket QPType = libibverbs.IBV_QPT_RAW_PACKET // Ethernet frames
)

// The types of queue pairs for extended reliable connections, which deliver
// messages to the shared receive queues of several processes.
const (
	QPTypeXRCSend QPType = libibverbs.IBV_QPT_XRC_SEND // the sending end
	QPTypeXRCRecv QPType = libibverbs.IBV_QPT_XRC_RECV // the receiving end
)

// QPState is the state of a queue pair.
type QPState = libibverbs.QpState

// The states of a queue pair.
const (
	QPStateReset QPState = libibverbs.IBV_QPS_RESET
	QPStateInit  QPState = libibverbs.IBV_QPS_INIT
	QPStateRTR   QPState = libibverbs.IBV_QPS_RTR // ready to receive
	QPStateRTS   QPState = libibverbs.IBV_QPS_RTS // ready to send
	QPStateSQD   QPState = libibverbs.IBV_QPS_SQD // send queue drained
	QPStateSQE   QPState = libibverbs.IBV_QPS_SQE // send queue error
	QPStateError QPState = libibverbs.IBV_QPS_ERR
)

// SendFlags are options of a send request; combine them with |.
type SendFlags = libibverbs.SendFlags

// The options of a send request.
const (
	SendFence     SendFlags = libibverbs.IBV_SEND_FENCE     // start after earlier reads and atomics have completed
	SendSignaled  SendFlags = libibverbs.IBV_SEND_SIGNALED  // request a completion
	SendSolicited SendFlags = libibverbs.IBV_SEND_SOLICITED // wake a peer that waits only for solicited events
	SendInline    SendFlags = libibverbs.IBV_SEND_INLINE    // copy the data during the post
)
