// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/verbena-go/verbena/generated/libibverbs"

// AsyncEvent is an asynchronous event. Object is what it is about: a *CQ, *QP
// or *SRQ, a port number as an int, or nil for the device.
type AsyncEvent struct {
	Type   libibverbs.EventType
	Object any
}
