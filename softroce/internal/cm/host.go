// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"net/netip"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// Host connects a Manager to the machine and the process. The errors of its
// methods are of type syscall.Errno. The methods must not call the Manager.
type Host interface {
	// Route returns the source address for packets to dst. src is the address
	// that the program has bound, and is returned if it is not the zero Addr.
	// Route fails with ENETUNREACH if there is no route.
	Route(dst, src netip.Addr) (netip.Addr, error)
	// Port returns the device port that has the address addr. It fails with
	// EADDRNOTAVAIL if no device has it, and with ENODEV if the device is
	// removed.
	Port(addr netip.Addr) (Port, error)
	// Claim claims an address and port for this node among all nodes of the
	// machine, until release is called. It fails with EADDRINUSE if another
	// node has claimed them.
	Claim(Claim) (release func(), err error)
	// Announce shows other processes that an ID listens at an address and
	// port, until end is called.
	Announce(Claim) (end func())
	// Answers reports whether the machine would send packets for peer
	// through the interface that has the address own. If it would not, a
	// packet from peer may be forged.
	Answers(own, peer netip.Addr) bool
	// Send sends a message. The manager does not change the message's data
	// afterwards.
	Send(MAD)
	// JoinMulticast makes the machine receive the packets of a multicast
	// group through a port.
	JoinMulticast(port Port, group netip.Addr) error
	// LeaveMulticast undoes one call of JoinMulticast.
	LeaveMulticast(port Port, group netip.Addr)
}

// Port is a port of a device, as seen from one of its addresses.
type Port struct {
	Device    any // value by which the caller identifies the device; comparable and not nil
	Num       uint8
	SGIDIndex uint8 // index of the address in the GID table
	MTU       libibverbs.Mtu
	AckDelay  uint8 // the device's local_ca_ack_delay
	// MaxResponderResources and MaxInitiatorDepth limit the RDMA reads and
	// atomics in flight on a queue pair, as responder and as requester:
	// max_qp_rd_atom and max_qp_init_rd_atom.
	MaxResponderResources, MaxInitiatorDepth uint8
	FlushAccess                              libibverbs.AccessFlags // access flags of FLUSH that the device supports
}

// Claim is an address and port of a port space. The unspecified address stands
// for all addresses of its family. The unspecified IPv6 address also stands for
// all IPv4 addresses, unless V6Only is set.
type Claim struct {
	Space  librdmacm.PortSpace
	Addr   netip.AddrPort
	V6Only bool
}

// MAD is a message between two connection managers.
type MAD struct {
	// Node is the number of the node to which a message is sent, or from
	// which it was received. In a sent message, 0 stands for the node that
	// has claimed the address Dst and the port of Service. If no node has
	// claimed them, the host may choose any node, since every node rejects
	// such a message.
	//
	// In a received message, Node and Src must be what the network reports.
	// What the message itself says may be forged.
	Node     int
	Src, Dst netip.Addr
	Service  uint64 // service ID of the request; used if Node is 0
	// Routed is nil, or a function that the host calls if Node is 0. The
	// host passes the number of the node that will get the message, before
	// the message arrives there.
	Routed func(node int)
	Data   []byte
}
