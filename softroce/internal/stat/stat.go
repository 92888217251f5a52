// SPDX-License-Identifier: Apache-2.0

// Package stat describes the device of a process, as JSON, for other processes
// that ask.
package stat

import "net/netip"

// Process is a process that uses the device in user space.
type Process struct {
	PID     int    `json:"pid"`     // 0 if it is in another PID namespace
	Program string `json:"program"` // the name, as in ps
	Network string `json:"network"` // VERBENA_NETWORK; empty for the default network
	// Device is nil if the process does not answer; Error then has the reason.
	Device *Device `json:"device,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Device is the device of a process.
type Device struct {
	Name       string       `json:"name"`
	GUID       string       `json:"guid"`
	State      string       `json:"state"` // active or down, of its port; or removed
	Addresses  []netip.Addr `json:"addresses"`
	Objects    Objects      `json:"objects"`
	Counters   Counters     `json:"counters"`
	QueuePairs []QueuePair  `json:"queue_pairs"` // in the order of numbers
}

// Objects counts the open objects of a process.
type Objects struct {
	Contexts            int `json:"contexts"`
	ProtectionDomains   int `json:"protection_domains"`
	MemoryRegions       int `json:"memory_regions"`
	MemoryWindows       int `json:"memory_windows"`
	AddressHandles      int `json:"address_handles"`
	CompletionQueues    int `json:"completion_queues"`
	SharedReceiveQueues int `json:"shared_receive_queues"`
}

// Counters counts the packets of a device, without messages of the connection
// manager.
type Counters struct {
	PacketsSent     uint64 `json:"packets_sent"`
	PacketsReceived uint64 `json:"packets_received"`
	PacketsMarked   uint64 `json:"packets_marked"` // received packets that routers marked because of congestion
	// Congestion notifications tell a peer, or this device, to send more
	// slowly.
	NotificationsSent     uint64 `json:"notifications_sent"`
	NotificationsReceived uint64 `json:"notifications_received"`
	// Retries are of all queue pairs, existing and destroyed.
	Retries
}

// Retries counts retransmissions and their causes.
type Retries struct {
	PacketsSentAgain  uint64 `json:"packets_sent_again"`
	Timeouts          uint64 `json:"timeouts"`            // answers that did not come in time
	SequenceErrors    uint64 `json:"sequence_errors"`     // packets that the peer has missed
	ReceiversNotReady uint64 `json:"receivers_not_ready"` // messages for which the peer had no receive
	MissedAnswers     uint64 `json:"missed_answers"`      // lost answers to reads and atomics
}

// QueuePair is a queue pair.
type QueuePair struct {
	Number uint32 `json:"number"`
	Type   string `json:"type"`  // RC, UC, UD
	State  string `json:"state"` // RESET, INIT, RTR, RTS, SQD, SQE, ERR
	// Peer is nil for datagram queue pairs, and for those that are not
	// connected yet.
	Peer *Peer `json:"peer,omitempty"`
	Retries
}

// Peer is the remote end of a queue pair.
type Peer struct {
	Address netip.Addr `json:"address"`
	Number  uint32     `json:"number"`
}
