// SPDX-License-Identifier: Apache-2.0

package engine

import "github.com/verbena-go/verbena/generated/libibverbs"

// AsyncEvent is an asynchronous event. The object is a *CQ, *QP, *SRQ, the number of a port as
// int, or nil for the device.
type AsyncEvent struct {
	Type   libibverbs.EventType
	Object any
}
