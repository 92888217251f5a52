// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"net/netip"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// A Host gives a Manager access to the machine and the process. Its errors are
// of type syscall.Errno. None of its methods may call the Manager.
type Host interface {
	// Route returns the address from which the machine sends to dst. It returns
	// src if that is valid. It fails with ENETUNREACH if there is no route.
	Route(dst, src netip.Addr) (netip.Addr, error)
	// Port returns the port that has an address. It fails with EADDRNOTAVAIL if
	// the machine does not have the address, and with ENODEV if no device has
	// it.
	Port(addr netip.Addr) (Port, error)
	// Claim reserves an address and port for the node among all nodes of the
	// machine, until release is called. It fails with EADDRINUSE if another
	// node holds them.
	Claim(Claim) (release func(), err error)
	// Answers reports whether the machine sends to peer by the interface that
	// has the address own, and peer can be the address of a host.
	Answers(own, peer netip.Addr) bool
	// Send sends a message. The manager does not change the message's data
	// afterwards.
	Send(MAD)
	// JoinMulticast makes the machine a member of a group on the link of a port.
	JoinMulticast(port Port, group netip.Addr) error
	// LeaveMulticast undoes one JoinMulticast.
	LeaveMulticast(port Port, group netip.Addr)
}

// A Port is a port of a device, seen from one of its addresses.
type Port struct {
	Device    any // the owner's device; comparable and not nil
	Num       uint8
	SGIDIndex uint8 // the GID index of the address
	MTU       libibverbs.Mtu
	AckDelay  uint8 // local_ca_ack_delay
	// The limits of outstanding RDMA reads and atomics of a queue pair, as
	// responder and as requester: max_qp_rd_atom and max_qp_init_rd_atom.
	MaxResponderResources, MaxInitiatorDepth uint8
}

// A Claim is an address and port of a port space. The unspecified address
// stands for all addresses of its family. The unspecified address of IPv6 also
// stands for those of IPv4, unless V6Only is set.
type Claim struct {
	Space  librdmacm.PortSpace
	Addr   netip.AddrPort
	V6Only bool
}

// A MAD is a message between managers.
type MAD struct {
	// Node is the destination of a sent message and the source of a received
	// one. 0 stands for the node that claimed the address Dst and the port of
	// Service. If no node did, it stands for any node, this one included, as
	// all refuse the message alike. In Receive, the link sets Node and Src;
	// they do not depend on what the sender claims.
	Node     int
	Src, Dst netip.Addr
	Service  uint64 // the service ID, if Node is 0
	// Went, if Node is 0, is called by the host with the node that will get the
	// message, before the message arrives there.
	Went func(node int)
	Data []byte
}
