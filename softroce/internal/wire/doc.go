// SPDX-License-Identifier: Apache-2.0

// Package wire marshals and parses RoCE version 2: packets, from the base
// transport header to the invariant CRC, and the messages of the connection
// manager. It also makes the route header that precedes a received datagram,
// and computes with sequence numbers, syndromes and timer codes. It does no I/O
// and keeps no state.
//
// All numbers are in the host's order, whatever their order on the wire.
// Numbers with fewer bits than their Go type, such as queue pair numbers of 24
// bits, lose their upper bits when they are marshalled.
package wire

// Numbers that the specification assigns.
const (
	Port        = 4791       // the UDP port of packets' destination
	GSI         = 1          // the queue pair of the connection manager
	GSIQKey     = 0x80010000 // its Q_Key
	MulticastQP = 0xFFFFFF   // the destination queue pair of multicast packets
	DefaultPKey = 0xFFFF     // full membership of the default partition
)
