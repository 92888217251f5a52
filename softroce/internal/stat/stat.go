// SPDX-License-Identifier: Apache-2.0

// Package stat has what a process says of its device to those who ask, as JSON.
package stat

import "net/netip"

// Process is a process that uses the device in user space.
type Process struct {
	PID     int    `json:"pid"`     // 0: it is in another namespace of processes
	Program string `json:"program"` // its name, as ps shows it
	Network string `json:"network"` // VERBENA_NETWORK; empty: the network of all others
	// Device is nil if the process does not answer; Error says why then.
	Device *Device `json:"device,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// Device is the device of a process.
type Device struct {
	Name       string       `json:"name"`
	GUID       string       `json:"guid"`
	State      string       `json:"state"` // of its port: active, down; or removed
	Addresses  []netip.Addr `json:"addresses"`
	Objects    Objects      `json:"objects"`
	Counters   Counters     `json:"counters"`
	QueuePairs []QueuePair  `json:"queue_pairs"` // by number
}

// Objects is how many objects the program has.
type Objects struct {
	Contexts            int `json:"contexts"`
	ProtectionDomains   int `json:"protection_domains"`
	MemoryRegions       int `json:"memory_regions"`
	MemoryWindows       int `json:"memory_windows"`
	AddressHandles      int `json:"address_handles"`
	CompletionQueues    int `json:"completion_queues"`
	SharedReceiveQueues int `json:"shared_receive_queues"`
}

// Counters count what a device has sent and received. Messages of the connection manager are not among it.
type Counters struct {
	PacketsSent     uint64 `json:"packets_sent"`
	PacketsReceived uint64 `json:"packets_received"`
	PacketsMarked   uint64 `json:"packets_marked"` // received, by routers: their way is congested
	// Congestion notifications tell a peer, or this device, to send more slowly.
	NotificationsSent     uint64 `json:"notifications_sent"`
	NotificationsReceived uint64 `json:"notifications_received"`
	// Retries are those of all queue pairs that there are or were.
	Retries
}

// Retries count what had to be done again.
type Retries struct {
	PacketsSentAgain  uint64 `json:"packets_sent_again"`
	Timeouts          uint64 `json:"timeouts"`            // no answer came in time
	SequenceErrors    uint64 `json:"sequence_errors"`     // the peer has missed a packet
	ReceiversNotReady uint64 `json:"receivers_not_ready"` // the peer had no receive
	MissedAnswers     uint64 `json:"missed_answers"`      // an answer to a read or atomic was lost
}

// QueuePair is a queue pair.
type QueuePair struct {
	Number uint32 `json:"number"`
	Type   string `json:"type"`  // RC, UC, UD
	State  string `json:"state"` // RESET, INIT, RTR, RTS, SQD, SQE, ERR
	// Peer is nil for datagrams, and as long as there is none.
	Peer *Peer `json:"peer,omitempty"`
	Retries
}

// Peer is where a queue pair is connected to.
type Peer struct {
	Address netip.Addr `json:"address"`
	Number  uint32     `json:"number"`
}
