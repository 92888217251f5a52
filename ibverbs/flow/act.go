package flow

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// actor is a spec that needs an object for as long as the rule is there.
type actor interface {
	Spec
	acts() *object.Object
}

// Tag marks the completions of packets that match with a number.
type Tag uint32

func (s Tag) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecActionTag{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_TAG, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionTag{})),
		TagId: uint32(s),
	})
	return nil
}

// Drop drops packets that match.
type Drop struct{}

func (Drop) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecActionDrop{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_DROP, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionDrop{})),
	})
	return nil
}

// Count counts packets that match. The rule depends on the counters.
type Count struct{ Counters *Counters }

func (s Count) acts() *object.Object { return s.Counters.self() }

func (s Count) put(b *buffer, device *ibverbs.Device) error {
	if err := notOfDevice(device, s.acts(), s.Counters.device); err != nil {
		return err
	}
	putSpec(b, &libibverbs.FlowSpecCounterAction{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_COUNT, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecCounterAction{})),
		Counters: s.Counters.raw,
	})
	return nil
}

// Apply lets an action deal with packets that match. The rule depends on the
// action.
type Apply struct{ Action *Action }

func (s Apply) acts() *object.Object { return s.Action.self() }

func (s Apply) put(b *buffer, device *ibverbs.Device) error {
	if err := notOfDevice(device, s.acts(), s.Action.device); err != nil {
		return err
	}
	putSpec(b, &libibverbs.FlowSpecActionHandle{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_HANDLE, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionHandle{})),
		Action: s.Action.raw,
	})
	return nil
}
