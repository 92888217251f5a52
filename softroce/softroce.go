// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"fmt"
	"net/netip"
	"time"
)

// name is the device's in VERBENA_DEVICE.
const name = "soft"

// Config says what the device is like. The zero Config is a device like any other.
type Config struct {
	// Network is how far the device reaches. If it is empty, that is processes of this machine. "udp" are all machines, and
	// network cards with RoCE version 2, by the addresses that this machine has, but for those of the loopback interface; and
	// "udp=192.0.2.1,2001:db8::1" the same by these addresses of it. It is what VERBENA_DEVICE has behind "soft:".
	Network string

	// Hostile, if it is not empty, makes the device as unfriendly as the InfiniBand specification lets a
	// network and its devices be, and is the seed of how: packets of reliable connections and messages of the
	// connection manager come late, twice or in another order; acknowledgements are slow; receivers that are
	// ready say that they are not; queue pairs send a few packets at a time. Nothing is lost: a program that
	// is correct sees no other results than without it, only later and in other orders. Any text will do.
	//
	// If it is empty, the environment variable VERBENA_HOSTILE is the seed.
	Hostile string
}

// Packet is a packet on its way from a queue pair to another.
type Packet struct {
	Kind                Kind
	Source, Destination netip.Addr
	// DestQP is the number of the queue pair that the packet goes to: 1 for messages of the connection
	// manager, 0xFFFFFF for datagrams to a multicast group.
	DestQP uint32
	// PSN is the number that the packet has between its two queue pairs, of 24 bits. A packet that is sent
	// again has the same one.
	PSN uint32
	// First and Last say which part of its message the packet is; one that is the whole message is both.
	First, Last bool
	// Len is how many bytes of the program's data the packet carries.
	Len int
}

// Kind is what a packet is for.
type Kind uint8

// The kinds of packets. Those from REQ on are the connection manager's.
const (
	Send           Kind = iota + 1 // part of a message, or a datagram
	Write                          // part of an RDMA write
	ReadRequest                    // asks for bytes
	ReadResponse                   // part of them
	AtomicRequest                  // asks for an atomic operation
	AtomicResponse                 // says what was in memory before it
	Ack                            // has received everything up to the packet's PSN
	Nak                            // has missed the packet with the PSN, or refuses it
	NotReady                       // had no receive for the packet with the PSN: an RNR NAK

	REQ     // asks for a connection
	REP     // accepts one
	RTU     // ready to use: answers REP
	REJ     // rejects a connection
	MRA     // will answer later
	DREQ    // ends a connection
	DREP    // has ended it, too
	SIDRREQ // asks for the queue pair of a datagram service
	SIDRREP // says which it is
)

var kinds = [...]string{
	Send: "SEND", Write: "WRITE", ReadRequest: "READ request", ReadResponse: "READ response", AtomicRequest: "atomic request",
	AtomicResponse: "atomic response", Ack: "ACK", Nak: "NAK", NotReady: "RNR NAK", REQ: "REQ", REP: "REP", RTU: "RTU", REJ: "REJ",
	MRA: "MRA", DREQ: "DREQ", DREP: "DREP", SIDRREQ: "SIDR_REQ", SIDRREP: "SIDR_REP",
}

// String returns the name that the InfiniBand specification has for the kind.
func (k Kind) String() string {
	if int(k) < len(kinds) && kinds[k] != "" {
		return kinds[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// Fault is what happens to a packet. The zero Fault lets it arrive.
type Fault struct {
	// Drop loses the packet. Nothing else happens to it then.
	Drop bool
	// Corrupt changes a bit of the packet. As on a wire, the receiver finds out by the checksum and ignores the
	// packet; a bit that the checksum does not cover, since routers may change it, does no harm.
	Corrupt bool
	// Duplicate is how many more times the packet arrives.
	Duplicate int
	// Delay makes the packet arrive that much later, and so after others that were sent behind it.
	Delay time.Duration
}
