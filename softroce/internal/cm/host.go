// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"net/netip"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// A Host is what a Manager needs of the machine and of the process that it is in. Its
// errors are of type syscall.Errno. None of its methods may call the Manager.
type Host interface {
	// Route returns the address from which the machine sends to dst; it is src, if that is
	// valid. ENETUNREACH says that there is no way.
	Route(dst, src netip.Addr) (netip.Addr, error)
	// Port returns the port that has an address. EADDRNOTAVAIL says that the machine does
	// not have the address, ENODEV that no device has it.
	Port(addr netip.Addr) (Port, error)
	// Claim makes an address and port the node's own among all nodes of the machine, until
	// release is called. EADDRINUSE says that another node has it.
	Claim(Claim) (release func(), err error)
	// Answers reports whether the machine sends to a peer by the interface that
	// has its own address, and a host can be there.
	Answers(own, peer netip.Addr) bool
	// Send sends a message. Nobody changes its data afterwards.
	Send(MAD)
	// JoinMulticast makes the machine a member of a group on the link of a port.
	JoinMulticast(port Port, group netip.Addr) error
	// LeaveMulticast undoes one JoinMulticast.
	LeaveMulticast(port Port, group netip.Addr)
}

// A Port is a port of a device, seen from one of its addresses.
type Port struct {
	Device    any // the owner's; not nil and comparable
	Num       uint8
	SGIDIndex uint8 // of the address
	MTU       libibverbs.Mtu
	AckDelay  uint8 // local_ca_ack_delay
	// How many RDMA reads and atomics a queue pair can have outstanding, as responder and
	// as requester: max_qp_rd_atom and max_qp_init_rd_atom.
	MaxResponderResources, MaxInitiatorDepth uint8
}

// A Claim is an address and port of a port space. The unspecified address stands for all
// addresses of its family; that of IPv6 for those of IPv4 too, unless V6Only is set.
type Claim struct {
	Space  librdmacm.PortSpace
	Addr   netip.AddrPort
	V6Only bool
}

// A MAD is a message between managers.
type MAD struct {
	// Node is the node that the message goes to or, in Receive, comes from. 0 is the one that
	// has claimed the address Dst and the port of Service; if there is none, any node will
	// do, this one as well, since all refuse alike. In Receive, Node and Src are what the link
	// knows of the sender, and not what that says.
	Node     int
	Src, Dst netip.Addr
	Service  uint64         // the service ID, if Node is 0
	Went     func(node int) // if Node is 0: the host calls it with the node that the message goes to, before it is there
	Data     []byte
}
