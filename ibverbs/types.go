package ibverbs

import (
	"fmt"
	"net/netip"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// AccessFlags say what may be done with a memory region; combine them with |.
type AccessFlags = libibverbs.AccessFlags

// The access flags. A region that peers may write or operate on atomically
// needs AccessLocalWrite too. Reading it locally is always allowed.
const (
	AccessLocalWrite      AccessFlags = libibverbs.IBV_ACCESS_LOCAL_WRITE
	AccessRemoteWrite     AccessFlags = libibverbs.IBV_ACCESS_REMOTE_WRITE
	AccessRemoteRead      AccessFlags = libibverbs.IBV_ACCESS_REMOTE_READ
	AccessRemoteAtomic    AccessFlags = libibverbs.IBV_ACCESS_REMOTE_ATOMIC
	AccessWindowBind      AccessFlags = libibverbs.IBV_ACCESS_MW_BIND
	AccessZeroBased       AccessFlags = libibverbs.IBV_ACCESS_ZERO_BASED
	AccessOnDemand        AccessFlags = libibverbs.IBV_ACCESS_ON_DEMAND
	AccessHugeTLB         AccessFlags = libibverbs.IBV_ACCESS_HUGETLB
	AccessFlushGlobal     AccessFlags = libibverbs.IBV_ACCESS_FLUSH_GLOBAL
	AccessFlushPersistent AccessFlags = libibverbs.IBV_ACCESS_FLUSH_PERSISTENT
	AccessRelaxedOrdering AccessFlags = libibverbs.IBV_ACCESS_RELAXED_ORDERING
)

// NodeType is what kind of thing a device is.
type NodeType = libibverbs.NodeType

// Transport is the protocol family that a device speaks.
type Transport = libibverbs.TransportType

// PortState is the logical state of a port.
type PortState = libibverbs.PortState

// The states of a port.
const (
	PortDown        PortState = libibverbs.IBV_PORT_DOWN
	PortInit        PortState = libibverbs.IBV_PORT_INIT
	PortArmed       PortState = libibverbs.IBV_PORT_ARMED
	PortActive      PortState = libibverbs.IBV_PORT_ACTIVE
	PortActiveDefer PortState = libibverbs.IBV_PORT_ACTIVE_DEFER
)

// LinkLayer is what a port's link is made of.
type LinkLayer = libibverbs.LinkLayer

// The link layers.
const (
	LinkUnspecified LinkLayer = libibverbs.IBV_LINK_LAYER_UNSPECIFIED
	LinkInfiniBand  LinkLayer = libibverbs.IBV_LINK_LAYER_INFINIBAND
	LinkEthernet    LinkLayer = libibverbs.IBV_LINK_LAYER_ETHERNET
)

// MTU is a path's maximum transfer unit.
type MTU libibverbs.Mtu

// Bytes returns the unit in bytes, 0 if it is not a valid one.
func (m MTU) Bytes() int {
	if m < MTU(libibverbs.IBV_MTU_256) || m > MTU(libibverbs.IBV_MTU_4096) {
		return 0
	}
	return 128 << m
}

// String returns the unit in bytes, as in 4096.
func (m MTU) String() string { return fmt.Sprint(m.Bytes()) }

// GUID is a 64-bit identifier of a device or port, in the host's byte order.
type GUID uint64

// String returns four groups of four hexadecimal digits, as in
// 0002:c903:0001:4aef.
func (g GUID) String() string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
}

// OUI returns the upper 24 bits, which say who made the device.
func (g GUID) OUI() uint32 { return uint32(g >> 40) }

// IsReserved reports whether the GUID is 0, which is nobody's: its driver has
// not set it.
func (g GUID) IsReserved() bool { return g == 0 }

// GID is a port's address, 16 bytes in network order.
type GID [16]byte

// Addr returns the GID as an IP address: that of the network interface, for
// RoCE v2.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether the GID is an empty entry of a table.
func (g GID) IsZero() bool { return g == GID{} }

// String returns eight groups of four hexadecimal digits.
func (g GID) String() string { return netip.AddrFrom16(g).StringExpanded() }

// QPType is the service that a queue pair gives.
type QPType = libibverbs.QpType

// The types of queue pairs.
const (
	QPTypeRC        QPType = libibverbs.IBV_QPT_RC         // reliable connection
	QPTypeUC        QPType = libibverbs.IBV_QPT_UC         // unreliable connection
	QPTypeUD        QPType = libibverbs.IBV_QPT_UD         // unreliable datagram
	QPTypeRawPacket QPType = libibverbs.IBV_QPT_RAW_PACKET // Ethernet frames
)

// QPState is where a queue pair is in its life.
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

// SendFlags are the options of a send request; combine them with |.
type SendFlags = libibverbs.SendFlags

// The options of a send request.
const (
	SendFence     SendFlags = libibverbs.IBV_SEND_FENCE     // wait for earlier reads and atomics
	SendSignaled  SendFlags = libibverbs.IBV_SEND_SIGNALED  // ask for a completion
	SendSolicited SendFlags = libibverbs.IBV_SEND_SOLICITED // wake a peer that waits for solicited events
	SendInline    SendFlags = libibverbs.IBV_SEND_INLINE    // copy the data while posting
)
