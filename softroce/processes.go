// SPDX-License-Identifier: Apache-2.0

package softroce

import "github.com/verbena-go/verbena/softroce/internal/stat"

// What [Processes] has found. As JSON it is what verbena softroce stat prints.
type (
	// Process is a process that uses the device.
	Process = stat.Process
	// Device is the device of a process.
	Device = stat.Device
	// Objects is how many objects a program has.
	Objects = stat.Objects
	// Counters count what a device has sent and received, but for messages of the connection manager.
	Counters = stat.Counters
	// Retries count what had to be done again.
	Retries = stat.Retries
	// QueuePair is a queue pair.
	QueuePair = stat.QueuePair
	// Peer is where a queue pair is connected to.
	Peer = stat.Peer
)
