// SPDX-License-Identifier: Apache-2.0

// Package cmevent takes events of the connection manager from a device in this
// process, which wakes the reader without a descriptor, and so without system
// calls.
package cmevent

import (
	"sync/atomic"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// Channel is an event channel of a device in this process.
type Channel interface {
	// Pending reports whether the channel may have an event.
	Pending() bool
	// Next takes the next event. It returns nil if there is none.
	Next() *librdmacm.CmEvent
	// Ack acknowledges an event.
	Ack(event *librdmacm.CmEvent)
}

// Open takes over a channel that rdma_create_event_channel has created, and
// closes its descriptor, which must not have been used. From then on, the
// device calls wake for each event. wake must not block, and reports whether it
// has woken a goroutine. Open returns nil if the device does not know the
// channel.
type Open func(channel *librdmacm.EventChannel, wake func() bool) Channel

var device atomic.Pointer[Open]

// SetDevice sets the function of the device in this process.
func SetDevice(open Open) { device.Store(&open) }

// Take opens a channel of the device of SetDevice. It returns nil if there is
// no such device, or if the channel is not the device's.
func Take(channel *librdmacm.EventChannel, wake func() bool) Channel {
	open := device.Load()
	if open == nil {
		return nil
	}
	return (*open)(channel, wake)
}
