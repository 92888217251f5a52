// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"net/netip"
	"time"
)

// name is the name of the device in VERBENA_DEVICE.
const name = "soft"

// Config configures the device. The zero value gives a fault-free device that
// reaches other processes on this machine.
type Config struct {
	// Network selects the peers that the device can reach. It is the part of
	// VERBENA_DEVICE after "soft:". Empty means processes on this machine.
	// "udp" means processes on all machines, and network cards with RoCE
	// version 2, over all addresses of this machine except loopback ones.
	// "udp=192.0.2.1,2001:db8::1" means the same over these addresses only.
	Network string

	// Hostile, if not empty, makes the device as unfriendly as the InfiniBand
	// specification allows. Its text seeds a deterministic schedule. Packets of
	// reliable connections and messages of the connection manager come late,
	// twice or in another order. Acknowledgements are slow. Receivers that are
	// ready answer that they are not. Queue pairs send a few packets at a time.
	// Nothing is lost: a correct program sees the same results as without it,
	// only later and in another order.
	//
	// If Hostile is empty, the environment variable VERBENA_HOSTILE has the
	// seed.
	Hostile string
}

// Packet is a packet on its way from one queue pair to another.
type Packet struct {
	Kind                Kind
	Source, Destination netip.Addr
	// DestQP is the destination queue pair: 1 for messages of the connection
	// manager, 0xFFFFFF for datagrams to a multicast group.
	DestQP uint32
	// PSN is the sequence number of the packet between its two queue pairs, of
	// 24 bits. A retransmission has the same PSN.
	PSN uint32
	// First and Last report the position of the packet in its message. Both are
	// true for a packet that is the whole message.
	First, Last bool
	// Len is the number of bytes of the program's data in the packet.
	Len int
}

// Kind is the purpose of a packet.
type Kind uint8

// The kinds of packets. Those from REQ on belong to the connection manager.
const (
	Send           Kind = iota + 1 // carries a part of a message, or a datagram
	Write                          // carries a part of an RDMA write
	ReadRequest                    // requests bytes
	ReadResponse                   // carries a part of the requested bytes
	AtomicRequest                  // requests an atomic operation
	AtomicResponse                 // carries the value before the atomic operation
	Ack                            // acknowledges all packets up to PSN
	Nak                            // reports a missing packet (its PSN), or refuses a request
	NotReady                       // reports that there was no receive for the packet with the PSN: an RNR NAK

	REQ     // requests a connection
	REP     // accepts a connection
	RTU     // answers REP: ready to use
	REJ     // rejects a connection
	MRA     // announces a late answer
	DREQ    // ends a connection
	DREP    // agrees to the end
	SIDRREQ // requests the queue pair of a datagram service
	SIDRREP // answers with the queue pair
)

var kinds = [...]string{
	Send: "SEND", Write: "WRITE", ReadRequest: "READ request", ReadResponse: "READ response", AtomicRequest: "atomic request",
	AtomicResponse: "atomic response", Ack: "ACK", Nak: "NAK", NotReady: "RNR NAK", REQ: "REQ", REP: "REP", RTU: "RTU", REJ: "REJ",
	MRA: "MRA", DREQ: "DREQ", DREP: "DREP", SIDRREQ: "SIDR_REQ", SIDRREP: "SIDR_REP",
}

// String returns the name of the kind in the InfiniBand specification.
func (k Kind) String() string {
	if int(k) < len(kinds) && kinds[k] != "" {
		return kinds[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Fault is what happens to a packet. The packet with the zero Fault arrives
// unharmed.
type Fault struct {
	// Drop loses the packet. The other fields are then ignored.
	Drop bool
	// Corrupt flips a bit of the packet. As on a wire, the receiver detects
	// that by the checksum and ignores the packet. A bit that the checksum does
	// not cover, since routers may change it, does no harm.
	Corrupt bool
	// Duplicate is the number of additional copies that arrive.
	Duplicate int
	// Delay makes the packet arrive that much later, and so after packets that
	// were sent later.
	Delay time.Duration
}
