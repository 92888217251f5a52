// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math"
	"reflect"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Rule is a steering rule, which sends the packets that match it to a queue
// pair. Its methods may be called concurrently.
type Rule struct {
	object object.Object
	qp     *ibverbs.QP
	device *ibverbs.Device
	raw    *libibverbs.Flow
}

// Type is the type of a rule.
type Type = libibverbs.FlowAttrType

// The types of rules. Default and sniffer rules need no specs.
const (
	Normal           Type = libibverbs.IBV_FLOW_ATTR_NORMAL      // packets that the specs match
	AllDefault       Type = libibverbs.IBV_FLOW_ATTR_ALL_DEFAULT // packets that no other rule takes
	MulticastDefault Type = libibverbs.IBV_FLOW_ATTR_MC_DEFAULT  // multicast packets that no other rule takes
	Sniffer          Type = libibverbs.IBV_FLOW_ATTR_SNIFFER     // a copy of all packets on the port
)

// Flags are options of a rule; combine them with |.
type Flags = libibverbs.FlowFlags

// The options of a rule.
const (
	DontTrap Flags = libibverbs.IBV_FLOW_ATTR_FLAGS_DONT_TRAP // also pass packets on to matching rules with a higher Priority
	Egress   Flags = libibverbs.IBV_FLOW_ATTR_FLAGS_EGRESS    // match sent packets; the queue pair only selects the device
)

// MaxSpecs is the maximum number of specs in a rule.
const MaxSpecs = 10 // Linux's IB_FLOW_SPEC_SUPPORT_LAYERS

// Config is the configuration of a steering rule.
type Config struct {
	Type     Type // 0 means Normal
	Priority int  // priority from 0 to 65535; of the rules that match a packet, the one with the lowest number gets it
	Port     int  // port of the device, from 1 to 255; 0 means port 1
	Flags    Flags

	// Specs say which packets match, with headers in the order in which the
	// packet has them, and what to do with these packets.
	Specs []Spec
}

// Create steers packets to the queue pair, which must be of type
// [ibverbs.QPTypeUD] or [ibverbs.QPTypeRawPacket]; see ibv_create_flow(3). Few
// devices support steering; on others, the error matches errors.ErrUnsupported.
// Most need privileges, without which the error matches syscall.EPERM. Close
// the rule before the queue pair.
func Create(qp *ibverbs.QP, config Config) (*Rule, error) {
	parents := []*object.Object{sibling.ObjectOf(qp)}
	for i, s := range config.Specs {
		if v := reflect.ValueOf(s); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, cerr.Nil("ibv_create_flow", fmt.Sprintf("spec %d", i))
		}
		if s, ok := s.(actor); ok {
			parents = append(parents, s.acts())
		}
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	attr, err := config.attr(qp)
	if err != nil {
		return nil, err
	}
	raw, err := libibverbs.CreateFlow(qp.Raw(), attr)
	if err != nil {
		return nil, sibling.Wrap(parents[0].Name(), err)
	}
	r := &Rule{qp: qp, device: qp.Device(), raw: raw}
	r.object.Init(fmt.Sprintf("flow %d of %s", raw.Handle, r.device.Name()), parents...)
	return r, nil
}

// attr returns the rule in C's form: a struct followed by the specs.
func (c Config) attr(qp *ibverbs.QP) (*libibverbs.FlowAttr, error) {
	if wrong := c.wrong(qp); wrong != "" {
		return nil, cerr.Refuse("ibv_create_flow", sibling.ObjectOf(qp).Name(), "%s", wrong)
	}
	b := new(buffer)
	*b.attr() = libibverbs.FlowAttr{
		Type: c.Type, Priority: uint16(c.Priority), NumOfSpecs: uint8(len(c.Specs)), Port: uint8(max(c.Port, 1)),
		Flags: c.Flags,
	}
	for i, s := range c.Specs {
		if err := s.put(b, qp.Device()); err != nil {
			return nil, cerr.Argument("ibv_create_flow", sibling.ObjectOf(qp).Name(), fmt.Errorf("spec %d: %w", i, err))
		}
	}
	b.attr().Size = uint16(b.size())
	return b.attr(), nil
}

// wrong returns what is wrong with the config, if C would reject or
// misunderstand it, and "" otherwise.
func (c Config) wrong(qp *ibverbs.QP) string {
	switch t := qp.Type(); {
	case t != ibverbs.QPTypeUD && t != ibverbs.QPTypeRawPacket:
		return fmt.Sprintf("the queue pair is of type %v, neither %v nor %v", t, ibverbs.QPTypeUD, ibverbs.QPTypeRawPacket)
	case c.Type > Sniffer:
		return fmt.Sprintf("Config.Type is %v, more than %v", c.Type, Sniffer)
	case c.Priority < 0 || c.Priority > math.MaxUint16:
		return fmt.Sprintf("Config.Priority is %d, not from 0 to %d", c.Priority, math.MaxUint16)
	case c.Port < 0 || c.Port > math.MaxUint8:
		return fmt.Sprintf("Config.Port is %d, not from 0 to %d", c.Port, math.MaxUint8)
	case c.Flags&DontTrap != 0 && c.Type != Normal:
		return fmt.Sprintf("Config.Type is %v, but DontTrap needs %v", c.Type, Normal)
	case len(c.Specs) > MaxSpecs:
		return fmt.Sprintf("the rule has %d specs, more than %d", len(c.Specs), MaxSpecs)
	}
	return ""
}

func (r *Rule) self() *object.Object {
	if r == nil {
		return nil
	}
	return &r.object
}

// QP returns the queue pair to which the rule steers packets.
func (r *Rule) QP() *ibverbs.QP { return r.qp }

// Raw returns the C object, which is valid until Close.
func (r *Rule) Raw() *libibverbs.Flow { return r.raw }

// Close removes the rule; see ibv_destroy_flow(3).
func (r *Rule) Close() error {
	return r.self().Close(nil, func() error {
		return sibling.Wrap(r.object.Name(), sibling.UnlessRemoved(r.device, libibverbs.DestroyFlow(r.raw)))
	})
}
