// SPDX-License-Identifier: Apache-2.0

package softroce

import "github.com/verbena-go/verbena/softroce/internal/stat"

// The result of [Processes]. Its JSON form is the output of verbena softroce
// stat.
type (
	// Process is a process that uses the device.
	Process = stat.Process
	// Device is the device of a process.
	Device = stat.Device
	// Objects counts the open objects of a process.
	Objects = stat.Objects
	// Counters counts the packets of a device, without messages of the
	// connection manager.
	Counters = stat.Counters
	// Retries counts retransmissions and their causes.
	Retries = stat.Retries
	// QueuePair is a queue pair.
	QueuePair = stat.QueuePair
	// Peer is the remote end of a queue pair.
	Peer = stat.Peer
)
