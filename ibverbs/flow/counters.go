// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Counters count the packets or bytes that steering rules match. The methods of
// Counters may be called concurrently.
type Counters struct {
	object object.Object
	device *ibverbs.Device
	raw    *libibverbs.Counters
}

// CounterKind selects what a counter counts.
type CounterKind = libibverbs.CounterDescription

// The kinds of counters.
const (
	CounterPackets CounterKind = libibverbs.IBV_COUNTER_PACKETS
	CounterBytes   CounterKind = libibverbs.IBV_COUNTER_BYTES
)

// CreateCounters creates a set of counters that start at 0; see
// ibv_create_counters(3). Few devices support them; on others, the error
// matches errors.ErrUnsupported.
func CreateCounters(device *ibverbs.Device) (*Counters, error) {
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	raw, err := libibverbs.CreateCounters(device.Raw(), &libibverbs.CountersInitAttr{})
	if err != nil {
		return nil, sibling.Wrap(device.Name(), err)
	}
	cs := &Counters{device: device, raw: raw}
	cs.object.Init("counters of "+device.Name(), parent)
	return cs, nil
}

func (cs *Counters) self() *object.Object {
	if cs == nil {
		return nil
	}
	return &cs.object
}

// Attach makes the counter at an index, from 0, count what a rule matches; see
// ibv_attach_counters_point_flow(3). Once it is attached, the rule must be
// closed before the counters. With a nil rule, Attach applies to rules created
// later with [Count]; some devices support only this. If several rules are
// attached to one index, the counter has their sum.
func (cs *Counters) Attach(index int, kind CounterKind, rule *Rule) error {
	objects := []*object.Object{cs.self()}
	var raw *libibverbs.Flow
	if rule != nil {
		objects = append(objects, &rule.object)
		raw = rule.raw
	}
	done, err := object.UseAll(objects...)
	if err != nil {
		return err
	}
	defer done()
	if rule != nil {
		if err := sibling.SameDevice("ibv_attach_counters_point_flow", cs.object.Name(), cs.device, &rule.object, rule.device); err != nil {
			return err
		}
	}
	if index < 0 || index > math.MaxInt32 {
		return cerr.Refuse("ibv_attach_counters_point_flow", cs.object.Name(), "index is %d, not from 0 to %d", index, math.MaxInt32)
	}
	attr := &libibverbs.CounterAttachAttr{CounterDesc: kind, Index: uint32(index)}
	if err := libibverbs.AttachCountersPointFlow(cs.raw, attr, raw); err != nil {
		return sibling.Wrap(fmt.Sprintf("%v at index %d of %s", kind, index, cs.object.Name()), err)
	}
	if rule != nil {
		rule.object.AddParent(&cs.object)
	}
	return nil
}

// Read reads the counters into values, from index 0; see ibv_read_counters(3).
// If cached is set, Read may return numbers that the driver has stored, which
// may be old, instead of asking the device.
func (cs *Counters) Read(values []uint64, cached bool) error {
	if err := cs.self().Use(); err != nil {
		return err
	}
	defer cs.object.Done()
	if len(values) == 0 {
		return nil
	}
	if len(values) > math.MaxInt32 {
		return cerr.Refuse("ibv_read_counters", cs.object.Name(), "values has %d elements, more than %d", len(values), math.MaxInt32)
	}
	var flags libibverbs.ReadCountersFlags
	if cached {
		flags = libibverbs.IBV_READ_COUNTERS_ATTR_PREFER_CACHED
	}
	return sibling.Wrap(cs.object.Name(), libibverbs.ReadCounters(cs.raw, &values[0], uint32(len(values)), flags))
}

// Raw returns the C object, which is valid until Close.
func (cs *Counters) Raw() *libibverbs.Counters { return cs.raw }

// Close destroys the counters; see ibv_create_counters(3). While rules use
// them, Close does nothing and returns an *[ibverbs.BusyError].
func (cs *Counters) Close() error {
	return cs.self().Close(nil, func() error {
		return sibling.Wrap(cs.object.Name(), sibling.UnlessRemoved(cs.device, libibverbs.DestroyCounters(cs.raw)))
	})
}
