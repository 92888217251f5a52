package ibverbs

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// flowAction is a spec that needs an object for as long as the rule is there.
type flowAction interface {
	FlowSpec
	acts() *object.Object
}

// FlowTag marks the completions of packets that match with a number.
type FlowTag uint32

func (s FlowTag) put(b *flowBuffer, _ *libibverbs.Context) error {
	putSpec(b, &libibverbs.FlowSpecActionTag{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_TAG, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionTag{})),
		TagId: uint32(s),
	})
	return nil
}

// FlowDrop drops packets that match.
type FlowDrop struct{}

func (FlowDrop) put(b *flowBuffer, _ *libibverbs.Context) error {
	putSpec(b, &libibverbs.FlowSpecActionDrop{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_DROP, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionDrop{})),
	})
	return nil
}

// FlowCount counts packets that match. The rule depends on the counters.
type FlowCount struct{ Counters *Counters }

func (s FlowCount) acts() *object.Object { return s.Counters.self() }

func (s FlowCount) put(b *flowBuffer, device *libibverbs.Context) error {
	if device != s.Counters.device.raw {
		return notOfDevice(s.acts())
	}
	putSpec(b, &libibverbs.FlowSpecCounterAction{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_COUNT, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecCounterAction{})),
		Counters: s.Counters.raw,
	})
	return nil
}

// FlowHandle lets an action deal with packets that match. The rule depends on
// the action.
type FlowHandle struct{ Action *FlowAction }

func (s FlowHandle) acts() *object.Object { return s.Action.self() }

func (s FlowHandle) put(b *flowBuffer, device *libibverbs.Context) error {
	if device != s.Action.device.raw {
		return notOfDevice(s.acts())
	}
	putSpec(b, &libibverbs.FlowSpecActionHandle{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_HANDLE, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionHandle{})),
		Action: s.Action.raw,
	})
	return nil
}
