// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
)

// Caps describes what a device's counters can do.
type Caps struct {
	MaxValue    uint64 // largest value of a counter, after which it wraps to 0
	MaxCounters int
	Ops         Ops
}

// QueryCaps returns what the device's counters can do; see
// ibv_query_comp_cntr_caps(3).
func QueryCaps(device *ibverbs.Device) (Caps, error) {
	o := sibling.ObjectOf(device)
	if err := o.Use(); err != nil {
		return Caps{}, err
	}
	defer o.Done()
	var caps libibverbs.CompCntrCaps
	if err := libibverbs.QueryCompCntrCaps(device.Raw(), &caps); err != nil {
		return Caps{}, sibling.Wrap(device.Name(), err)
	}
	return Caps{
		MaxValue: caps.MaxValue, MaxCounters: int(caps.MaxCounters), Ops: caps.SupportedQpAttachOps,
	}, nil
}
