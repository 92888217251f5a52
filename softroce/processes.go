// SPDX-License-Identifier: Apache-2.0

package softroce

import "github.com/verbena-go/verbena/softroce/internal/stat"

// Types of the result of [Processes]. Their JSON form is the output of "verbena
// softroce stat".
type (
	// Process is a process that uses the device.
	Process = stat.Process
	// Device is a device of a process.
	Device = stat.Device
	// Objects has the numbers of open objects of a device.
	Objects = stat.Objects
	// Counters has counts of a device. Messages of the connection manager
	// are not counted as packets.
	Counters = stat.Counters
	// Retries has numbers of retransmissions and their causes.
	Retries = stat.Retries
	// QueuePair is a queue pair.
	QueuePair = stat.QueuePair
	// Peer is the remote end of a queue pair.
	Peer = stat.Peer
)
