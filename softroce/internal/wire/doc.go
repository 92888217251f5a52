// SPDX-License-Identifier: Apache-2.0

// Package wire marshals and parses what RoCE version 2 sends: packets from the base
// transport header to the invariant CRC, and the messages of the connection manager. It also
// makes the route header in front of a received datagram, and does the arithmetic of
// sequence numbers, syndromes and timer codes. It does no I/O and keeps no state.
//
// All numbers are in the host's order, whatever their order on the wire. Numbers of
// fewer bits than their Go type, such as the 24 bits of a queue pair's number, are cut
// to what the wire has room for when they are marshalled.
package wire

// Numbers that the specification gives.
const (
	Port        = 4791       // the UDP port that packets are sent to
	GSI         = 1          // the queue pair of the connection manager
	GSIQKey     = 0x80010000 // its Q_Key
	MulticastQP = 0xFFFFFF   // the queue pair that multicast packets name
	DefaultPKey = 0xFFFF     // full membership of the default partition
)
