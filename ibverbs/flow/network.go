package flow

import (
	"net/netip"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Ethernet matches an Ethernet header.
type Ethernet struct {
	Inner     bool // of the packet in the tunnel
	Dst, Src  Match[MAC]
	EtherType Match[uint16] // the one behind the last VLAN tag
	VLAN      Match[uint16] // the tag: priority in bits 15 to 13, then DEI, ID in bits 11 to 0
}

func (s Ethernet) put(b *buffer, _ *ibverbs.Device) error {
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

// IPv4 matches the addresses of an IPv4 header.
type IPv4 struct {
	Inner            bool
	Src, Dst         netip.Prefix // the zero value is any address
	SrcMask, DstMask netip.Addr   // the bits to look at, in place of the prefix's; the zero value is those
}

func (s IPv4) put(b *buffer, _ *ibverbs.Device) (err error) {
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

// IPv4Ext matches an IPv4 header. Fewer devices know it than IPv4.
type IPv4Ext struct {
	Inner            bool
	Src, Dst         netip.Prefix // the zero value is any address
	SrcMask, DstMask netip.Addr   // the bits to look at, in place of the prefix's; the zero value is those
	Protocol         Match[uint8]
	TOS              Match[uint8]
	TTL              Match[uint8]
	Flags            Match[uint8] // 1: more fragments follow; 2: don't fragment
}

func (s IPv4Ext) put(b *buffer, _ *ibverbs.Device) (err error) {
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

// IPv6 matches an IPv6 header.
type IPv6 struct {
	Inner            bool
	Src, Dst         netip.Prefix  // the zero value is any address
	SrcMask, DstMask netip.Addr    // the bits to look at, in place of the prefix's; the zero value is those
	FlowLabel        Match[uint32] // 20 bits
	NextHeader       Match[uint8]
	TrafficClass     Match[uint8]
	HopLimit         Match[uint8]
}

func (s IPv6) put(b *buffer, _ *ibverbs.Device) (err error) {
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
