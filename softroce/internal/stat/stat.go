// SPDX-License-Identifier: Apache-2.0

// Package stat describes the devices of a process, in a form that is sent to
// other processes as JSON.
package stat

import "net/netip"

// Process is a process that uses devices in user space.
type Process struct {
	PID     int    `json:"pid"`     // process ID; 0: the process is in another PID namespace
	Program string `json:"program"` // name of the program, as ps shows it
	Network string `json:"network"` // value of VERBENA_NETWORK; empty: the default network
	// Devices are the devices of the process. If the process does not
	// answer, there are none, and Error has the reason.
	Devices []Device `json:"devices,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// Device is a device of a process.
type Device struct {
	Name       string       `json:"name"`
	GUID       string       `json:"guid"`
	State      string       `json:"state"`     // state of the port, active or down; or removed
	Addresses  []netip.Addr `json:"addresses"` // addresses in the GID table
	Objects    Objects      `json:"objects"`
	Counters   Counters     `json:"counters"`
	QueuePairs []QueuePair  `json:"queue_pairs"` // sorted by number
}

// Objects has the number of open objects of each kind.
type Objects struct {
	Contexts            int `json:"contexts"`
	ProtectionDomains   int `json:"protection_domains"`
	MemoryRegions       int `json:"memory_regions"`
	MemoryWindows       int `json:"memory_windows"`
	AddressHandles      int `json:"address_handles"`
	CompletionQueues    int `json:"completion_queues"`
	SharedReceiveQueues int `json:"shared_receive_queues"`
}

// Counters has counts of a device. Messages of the connection manager are not
// counted as packets.
type Counters struct {
	PacketsSent     uint64 `json:"packets_sent"`
	PacketsReceived uint64 `json:"packets_received"`
	PacketsMarked   uint64 `json:"packets_marked"` // received packets that routers have marked because of congestion
	// NotificationsSent and NotificationsReceived count congestion
	// notifications to and from peers. A device that gets one reduces its
	// rate.
	NotificationsSent     uint64 `json:"notifications_sent"`
	NotificationsReceived uint64 `json:"notifications_received"`
	// Retries is the sum over all queue pairs, including destroyed ones.
	Retries
}

// Retries has numbers of retransmissions and their causes.
type Retries struct {
	PacketsSentAgain  uint64 `json:"packets_sent_again"`  // retransmitted packets
	Timeouts          uint64 `json:"timeouts"`            // expired acknowledgement timeouts
	SequenceErrors    uint64 `json:"sequence_errors"`     // lost packets that the peer reported
	ReceiversNotReady uint64 `json:"receivers_not_ready"` // messages for which the peer had no receive posted
	MissedAnswers     uint64 `json:"missed_answers"`      // lost responses to reads and atomics
}

// QueuePair is a queue pair.
type QueuePair struct {
	Number uint32 `json:"number"`
	Type   string `json:"type"`  // RC, UC, UD
	State  string `json:"state"` // RESET, INIT, RTR, RTS, SQD, SQE, ERR
	// Peer is nil if the queue pair is for datagrams or is not connected
	// yet.
	Peer *Peer `json:"peer,omitempty"`
	Retries
}

// Peer is the remote end of a queue pair.
type Peer struct {
	Address netip.Addr `json:"address"`
	Number  uint32     `json:"number"`
}
