package ibverbs

import (
	"net/netip"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// FlowSpec is a part of a steering rule: a header that packets must have, or
// what is done with those that match. FlowEthernet, FlowIPv4, FlowIPv4Ext,
// FlowIPv6, FlowTCP, FlowUDP, FlowESP, FlowVXLAN, FlowGRE and FlowMPLS match;
// FlowTag, FlowDrop, FlowCount and FlowHandle do. Fields that are left zero
// are not looked at.
type FlowSpec interface {
	// put puts the spec into a rule for a device.
	put(b *flowBuffer, device *libibverbs.Context) error
}

// specType returns the type of a spec of the outer or inner header.
func specType(t libibverbs.FlowSpecType, inner bool) libibverbs.FlowSpecType {
	if inner {
		t |= libibverbs.IBV_FLOW_SPEC_INNER
	}
	return t
}

// FlowEthernet matches an Ethernet header.
type FlowEthernet struct {
	Inner     bool // of the packet in the tunnel
	Dst, Src  FlowMatch[MAC]
	EtherType FlowMatch[uint16] // the one behind the last VLAN tag
	VLAN      FlowMatch[uint16] // the tag: priority in bits 15 to 13, then DEI, ID in bits 11 to 0
}

func (s FlowEthernet) put(b *flowBuffer, _ *libibverbs.Context) error {
	spec := libibverbs.FlowSpecEth{
		Type: specType(libibverbs.IBV_FLOW_SPEC_ETH, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecEth{})),
		Val: libibverbs.FlowEthFilter{
			DstMac: s.Dst.Value, SrcMac: s.Src.Value, EtherType: be16(s.EtherType.Value), VlanTag: be16(s.VLAN.Value),
		},
		Mask: libibverbs.FlowEthFilter{
			DstMac: s.Dst.Mask, SrcMac: s.Src.Mask, EtherType: be16(s.EtherType.Mask), VlanTag: be16(s.VLAN.Mask),
		},
	}
	putSpec(b, &spec)
	return checkAll("Dst", s.Dst, "Src", s.Src, "EtherType", s.EtherType, "VLAN", s.VLAN)
}

// FlowIPv4 matches the addresses of an IPv4 header.
type FlowIPv4 struct {
	Inner            bool
	Src, Dst         netip.Prefix // the zero value is any address
	SrcMask, DstMask netip.Addr   // the bits to look at, in place of the prefix's; the zero value is those
}

func (s FlowIPv4) put(b *flowBuffer, _ *libibverbs.Context) (err error) {
	spec := libibverbs.FlowSpecIpv4{
		Type: specType(libibverbs.IBV_FLOW_SPEC_IPV4, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecIpv4{})),
	}
	if spec.Val.SrcIp, spec.Mask.SrcIp, err = ipv4Of("Src", s.Src, s.SrcMask); err != nil {
		return err
	}
	if spec.Val.DstIp, spec.Mask.DstIp, err = ipv4Of("Dst", s.Dst, s.DstMask); err != nil {
		return err
	}
	putSpec(b, &spec)
	return nil
}

// FlowIPv4Ext matches an IPv4 header. Fewer devices know it than FlowIPv4.
type FlowIPv4Ext struct {
	Inner            bool
	Src, Dst         netip.Prefix // the zero value is any address
	SrcMask, DstMask netip.Addr   // the bits to look at, in place of the prefix's; the zero value is those
	Protocol         FlowMatch[uint8]
	TOS              FlowMatch[uint8]
	TTL              FlowMatch[uint8]
	Flags            FlowMatch[uint8] // 1: more fragments follow; 2: don't fragment
}

func (s FlowIPv4Ext) put(b *flowBuffer, _ *libibverbs.Context) (err error) {
	spec := libibverbs.FlowSpecIpv4Ext{
		Type: specType(libibverbs.IBV_FLOW_SPEC_IPV4_EXT, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecIpv4Ext{})),
		Val: libibverbs.FlowIpv4ExtFilter{
			Proto: s.Protocol.Value, Tos: s.TOS.Value, Ttl: s.TTL.Value, Flags: s.Flags.Value,
		},
		Mask: libibverbs.FlowIpv4ExtFilter{Proto: s.Protocol.Mask, Tos: s.TOS.Mask, Ttl: s.TTL.Mask, Flags: s.Flags.Mask},
	}
	if spec.Val.SrcIp, spec.Mask.SrcIp, err = ipv4Of("Src", s.Src, s.SrcMask); err != nil {
		return err
	}
	if spec.Val.DstIp, spec.Mask.DstIp, err = ipv4Of("Dst", s.Dst, s.DstMask); err != nil {
		return err
	}
	putSpec(b, &spec)
	return checkAll("Protocol", s.Protocol, "TOS", s.TOS, "TTL", s.TTL, "Flags", s.Flags)
}

// FlowIPv6 matches an IPv6 header.
type FlowIPv6 struct {
	Inner            bool
	Src, Dst         netip.Prefix      // the zero value is any address
	SrcMask, DstMask netip.Addr        // the bits to look at, in place of the prefix's; the zero value is those
	FlowLabel        FlowMatch[uint32] // 20 bits
	NextHeader       FlowMatch[uint8]
	TrafficClass     FlowMatch[uint8]
	HopLimit         FlowMatch[uint8]
}

func (s FlowIPv6) put(b *flowBuffer, _ *libibverbs.Context) (err error) {
	spec := libibverbs.FlowSpecIpv6{
		Type: specType(libibverbs.IBV_FLOW_SPEC_IPV6, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecIpv6{})),
		Val: libibverbs.FlowIpv6Filter{
			FlowLabel: be32(s.FlowLabel.Value), NextHdr: s.NextHeader.Value,
			TrafficClass: s.TrafficClass.Value, HopLimit: s.HopLimit.Value,
		},
		Mask: libibverbs.FlowIpv6Filter{
			FlowLabel: be32(lowBits(s.FlowLabel, 20).Mask), NextHdr: s.NextHeader.Mask,
			TrafficClass: s.TrafficClass.Mask, HopLimit: s.HopLimit.Mask,
		},
	}
	if spec.Val.SrcIp, spec.Mask.SrcIp, err = addressBytes("Src", s.Src, s.SrcMask, 16); err != nil {
		return err
	}
	if spec.Val.DstIp, spec.Mask.DstIp, err = addressBytes("Dst", s.Dst, s.DstMask, 16); err != nil {
		return err
	}
	putSpec(b, &spec)
	return checkAll("FlowLabel", lowBits(s.FlowLabel, 20), "NextHeader", s.NextHeader,
		"TrafficClass", s.TrafficClass, "HopLimit", s.HopLimit)
}
