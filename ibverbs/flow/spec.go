package flow

import (
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Spec is a part of a steering rule: a header that packets must have, or what is
// done with those that match. [Ethernet], [IPv4], [IPv4Ext], [IPv6], [TCP],
// [UDP], [ESP], [VXLAN], [GRE] and [MPLS] match; [Tag], [Drop], [Count] and
// [Apply] do. Fields that are left zero are not looked at.
type Spec interface {
	// put puts the spec into a rule for a device.
	put(b *buffer, device *ibverbs.Device) error
}

// specType returns the type of a spec of the outer or inner header.
func specType(t libibverbs.FlowSpecType, inner bool) libibverbs.FlowSpecType {
	if inner {
		t |= libibverbs.IBV_FLOW_SPEC_INNER
	}
	return t
}
