// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes RoCE version 2: packets, from the base
// transport header to the invariant CRC, and the messages of the connection
// manager. It also makes the global route header that precedes a received
// datagram, and computes with sequence numbers, syndromes and timer codes. It
// does no I/O and keeps no state.
//
// All numbers are in the host's byte order, whatever their order on the wire.
// If a field on the wire has fewer bits than its Go type, such as 24 for a
// queue pair number, encoding drops the upper bits.
package wire

// Numbers that the specification assigns.
const (
	Port        = 4791       // destination UDP port of packets
	GSI         = 1          // number of the connection manager's queue pair
	GSIQKey     = 0x80010000 // Q_Key of the queue pair GSI
	MulticastQP = 0xFFFFFF   // destination queue pair number of multicast packets
	DefaultPKey = 0xFFFF     // P_Key of full membership in the default partition
)
