package ibverbs

import (
	"fmt"
	"math"
	"reflect"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Flow is a steering rule: packets that it matches go to its queue pair. Its
// methods may be called concurrently.
type Flow struct {
	object object.Object
	qp     *QP
	raw    *libibverbs.Flow
}

// FlowType says what a rule is for.
type FlowType = libibverbs.FlowAttrType

// The types of rules. Default and sniffer rules need no specs.
const (
	FlowNormal           = libibverbs.IBV_FLOW_ATTR_NORMAL      // packets that the specs match
	FlowAllDefault       = libibverbs.IBV_FLOW_ATTR_ALL_DEFAULT // what no other rule takes
	FlowMulticastDefault = libibverbs.IBV_FLOW_ATTR_MC_DEFAULT  // multicast that no other rule takes
	FlowSniffer          = libibverbs.IBV_FLOW_ATTR_SNIFFER     // a copy of all that the port sees
)

// FlowFlags are options of a rule; combine them with |.
type FlowFlags = libibverbs.FlowFlags

// The options of a rule.
const (
	FlowDontTrap = libibverbs.IBV_FLOW_ATTR_FLAGS_DONT_TRAP // packets go on to rules with lower priority too
	FlowEgress   = libibverbs.IBV_FLOW_ATTR_FLAGS_EGRESS    // match packets that are sent; the queue pair only names the device
)

// MaxFlowSpecs is how many specs a rule can have.
const MaxFlowSpecs = 10 // Linux's IB_FLOW_SPEC_SUPPORT_LAYERS

// FlowConfig says how to make a steering rule.
type FlowConfig struct {
	Type     FlowType // the zero value is FlowNormal
	Priority int      // 0 to 65535; of rules that match, the lowest number wins
	Port     int      // of the device; the zero value is port 1
	Flags    FlowFlags

	// Specs say what is matched, with the headers in the order in which they
	// are in the packet, and what is done then.
	Specs []FlowSpec
}

// CreateFlow steers packets to the queue pair, which must be of type QPTypeUD
// or QPTypeRawPacket; see ibv_create_flow(3). Few devices can: expect
// errors.ErrUnsupported. Most ask for privileges: expect EPERM.
func (qp *QP) CreateFlow(config FlowConfig) (*Flow, error) {
	parents := []*object.Object{qp.self()}
	for i, s := range config.Specs {
		if v := reflect.ValueOf(s); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
			return nil, cerr.Nil("ibv_create_flow", fmt.Sprintf("spec %d", i))
		}
		if s, ok := s.(flowAction); ok {
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
	raw, err := libibverbs.CreateFlow(qp.raw, attr)
	if err != nil {
		return nil, wrap(qp.object.Name(), err)
	}
	flow := &Flow{qp: qp, raw: raw}
	flow.object.Init(fmt.Sprintf("flow %d of %s", raw.Handle, qp.device.Name()), parents...)
	return flow, nil
}

// attr returns the rule as C takes it: a struct with the specs behind it.
func (c FlowConfig) attr(qp *QP) (*libibverbs.FlowAttr, error) {
	if wrong := c.wrong(qp); wrong != "" {
		return nil, cerr.Refuse("ibv_create_flow", qp.object.Name(), "%s", wrong)
	}
	b := new(flowBuffer)
	*b.attr() = libibverbs.FlowAttr{
		Type: c.Type, Priority: uint16(c.Priority), NumOfSpecs: uint8(len(c.Specs)), Port: uint8(max(c.Port, 1)),
		Flags: uint32(c.Flags),
	}
	for i, s := range c.Specs {
		if err := s.put(b, qp.raw.Context); err != nil {
			return nil, cerr.Argument("ibv_create_flow", qp.object.Name(), fmt.Errorf("spec %d: %w", i, err))
		}
	}
	b.attr().Size = uint16(b.size())
	return b.attr(), nil
}

// wrong says what C would refuse, or what would mean something else to it.
func (c FlowConfig) wrong(qp *QP) string {
	switch t := qp.Type(); {
	case t != QPTypeUD && t != QPTypeRawPacket:
		return fmt.Sprintf("flow to a queue pair of type %v", t)
	case c.Type > FlowSniffer:
		return fmt.Sprintf("flow of type %v", c.Type)
	case c.Priority < 0 || c.Priority > math.MaxUint16:
		return fmt.Sprintf("flow of priority %d", c.Priority)
	case c.Port < 0 || c.Port > math.MaxUint8:
		return fmt.Sprintf("flow on port %d", c.Port)
	case c.Flags&FlowDontTrap != 0 && c.Type != FlowNormal:
		return fmt.Sprintf("FlowDontTrap in a flow of type %v", c.Type)
	case len(c.Specs) > MaxFlowSpecs:
		return fmt.Sprintf("flow of %d specs, more than %d,", len(c.Specs), MaxFlowSpecs)
	}
	return ""
}

func (f *Flow) self() *object.Object {
	if f == nil {
		return nil
	}
	return &f.object
}

// QP returns the queue pair that packets are steered to.
func (f *Flow) QP() *QP { return f.qp }

// Raw returns the C object, which is valid until Close.
func (f *Flow) Raw() *libibverbs.Flow { return f.raw }

// Close takes the rule away; see ibv_destroy_flow(3).
func (f *Flow) Close() error {
	return f.self().Close(nil, func() error {
		return wrap(f.object.Name(), f.qp.device.unlessRemoved(libibverbs.DestroyFlow(f.raw)))
	})
}
