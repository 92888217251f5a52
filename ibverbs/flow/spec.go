// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"cmp"
	"net/netip"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/object"
)

// Spec is a part of a steering rule: a header to match, or an action on packets
// that match. [Ethernet], [IPv4], [IPv4Ext], [IPv6], [TCP], [UDP], [ESP],
// [VXLAN], [GRE] and [MPLS] match; [Tag], [Drop], [Count] and [Apply] act. Zero
// fields match everything. A spec with Inner set matches a header of the packet
// that a tunnel carries; without Inner, it matches the packet as it is on the
// wire.
type Spec interface {
	// put adds the spec to a rule for a device.
	put(b *buffer, device *ibverbs.Device) error
}

// specType returns the type t of a spec, with the bit for an inner header if
// inner is set.
func specType(t libibverbs.FlowSpecType, inner bool) libibverbs.FlowSpecType {
	if inner {
		t |= libibverbs.IBV_FLOW_SPEC_INNER
	}
	return t
}

// Ethernet matches an Ethernet header.
type Ethernet struct {
	Inner     bool // whether to match the packet in a tunnel
	Dst, Src  Match[MAC]
	EtherType Match[uint16] // type after the last VLAN tag
	VLAN      Match[uint16] // VLAN tag: priority in bits 15 to 13, DEI in bit 12, ID in bits 11 to 0
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
	return cmp.Or(s.Dst.check("Dst"), s.Src.check("Src"), s.EtherType.check("EtherType"), s.VLAN.check("VLAN"))
}

// IPv4 matches the addresses in an IPv4 header.
type IPv4 struct {
	Inner            bool         // whether to match the packet in a tunnel
	Src, Dst         netip.Prefix // addresses to match; zero means any address
	SrcMask, DstMask netip.Addr   // bits to compare; zero means the bits of the prefix
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

// IPv4Ext matches an IPv4 header. Fewer devices support it than [IPv4].
type IPv4Ext struct {
	Inner            bool         // whether to match the packet in a tunnel
	Src, Dst         netip.Prefix // addresses to match; zero means any address
	SrcMask, DstMask netip.Addr   // bits to compare; zero means the bits of the prefix
	Protocol         Match[uint8]
	TOS              Match[uint8]
	TTL              Match[uint8]
	Flags            Match[uint8] // fragmentation flags: 1 for more fragments, 2 for don't fragment
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
	return cmp.Or(s.Protocol.check("Protocol"), s.TOS.check("TOS"), s.TTL.check("TTL"), s.Flags.check("Flags"))
}

// IPv6 matches an IPv6 header.
type IPv6 struct {
	Inner            bool          // whether to match the packet in a tunnel
	Src, Dst         netip.Prefix  // addresses to match; zero means any address
	SrcMask, DstMask netip.Addr    // bits to compare; zero means the bits of the prefix
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
	return cmp.Or(
		lowBits(s.FlowLabel, 20).check("FlowLabel"), s.NextHeader.check("NextHeader"),
		s.TrafficClass.check("TrafficClass"), s.HopLimit.check("HopLimit"),
	)
}

// TCP matches a TCP header.
type TCP struct {
	Inner            bool // whether to match the packet in a tunnel
	DstPort, SrcPort Match[uint16]
}

func (s TCP) put(b *buffer, _ *ibverbs.Device) error {
	return putPorts(b, specType(libibverbs.IBV_FLOW_SPEC_TCP, s.Inner), s.DstPort, s.SrcPort)
}

// UDP matches a UDP header.
type UDP struct {
	Inner            bool // whether to match the packet in a tunnel
	DstPort, SrcPort Match[uint16]
}

func (s UDP) put(b *buffer, _ *ibverbs.Device) error {
	return putPorts(b, specType(libibverbs.IBV_FLOW_SPEC_UDP, s.Inner), s.DstPort, s.SrcPort)
}

func putPorts(b *buffer, t libibverbs.FlowSpecType, dst, src Match[uint16]) error {
	putSpec(b, &libibverbs.FlowSpecTcpUdp{
		Type: t, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecTcpUdp{})),
		Val:  libibverbs.FlowTcpUdpFilter{DstPort: be16(dst.Value), SrcPort: be16(src.Value)},
		Mask: libibverbs.FlowTcpUdpFilter{DstPort: be16(dst.Mask), SrcPort: be16(src.Mask)},
	})
	return cmp.Or(dst.check("DstPort"), src.check("SrcPort"))
}

// ESP matches an ESP header of IPsec.
type ESP struct {
	Inner    bool // whether to match the packet in a tunnel
	SPI, Seq Match[uint32]
}

func (s ESP) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecEsp{
		Type: specType(libibverbs.IBV_FLOW_SPEC_ESP, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecEsp{})),
		Val:  libibverbs.FlowEspFilter{Spi: be32(s.SPI.Value), Seq: be32(s.Seq.Value)},
		Mask: libibverbs.FlowEspFilter{Spi: be32(s.SPI.Mask), Seq: be32(s.Seq.Mask)},
	})
	return cmp.Or(s.SPI.check("SPI"), s.Seq.check("Seq"))
}

// VXLAN matches the header of a VXLAN tunnel. Specs for the packet in the
// tunnel follow the VXLAN spec, with Inner set.
type VXLAN struct {
	VNI Match[uint32] // network identifier (VNI), 24 bits
}

func (s VXLAN) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecTunnel{
		Type: libibverbs.IBV_FLOW_SPEC_VXLAN_TUNNEL, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecTunnel{})),
		Val:  libibverbs.FlowTunnelFilter{TunnelId: be32(s.VNI.Value)},
		Mask: libibverbs.FlowTunnelFilter{TunnelId: be32(lowBits(s.VNI, 24).Mask)},
	})
	return lowBits(s.VNI, 24).check("VNI")
}

// GRE matches a GRE header.
type GRE struct {
	Flags    Match[uint16] // flags: checksum in bit 15, key in 13, sequence number in 12, version in 2 to 0
	Protocol Match[uint16]
	Key      Match[uint32]
}

func (s GRE) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecGre{
		Type: libibverbs.IBV_FLOW_SPEC_GRE, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecGre{})),
		Val: libibverbs.FlowGreFilter{
			CKsRes0Ver: be16(s.Flags.Value), Protocol: be16(s.Protocol.Value), Key: be32(s.Key.Value),
		},
		Mask: libibverbs.FlowGreFilter{
			CKsRes0Ver: be16(s.Flags.Mask), Protocol: be16(s.Protocol.Mask), Key: be32(s.Key.Mask),
		},
	})
	return cmp.Or(s.Flags.check("Flags"), s.Protocol.check("Protocol"), s.Key.check("Key"))
}

// MPLS matches an entry of an MPLS label stack. The position of the spec among
// the specs of the rule says which entry.
type MPLS struct {
	Inner bool          // whether to match the packet in a tunnel
	Entry Match[uint32] // entry: label in bits 31 to 12, traffic class in 11 to 9, bottom of stack in 8, TTL in 7 to 0
}

func (s MPLS) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecMpls{
		Type: specType(libibverbs.IBV_FLOW_SPEC_MPLS, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecMpls{})),
		Val:  libibverbs.FlowMplsFilter{Label: be32(s.Entry.Value)},
		Mask: libibverbs.FlowMplsFilter{Label: be32(s.Entry.Mask)},
	})
	return s.Entry.check("Entry")
}

// actor is a spec that uses an object. The object must exist as long as the
// rule.
type actor interface {
	Spec
	acts() *object.Object
}

// Tag marks the completions of packets that match with the number, which
// [ibverbs.WC.FlowTag] returns.
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

// Count counts packets that match. The rule must be closed before the counters.
type Count struct{ Counters *Counters }

func (s Count) acts() *object.Object { return s.Counters.self() }

func (s Count) put(b *buffer, device *ibverbs.Device) error {
	if err := sibling.NotOfDevice(device, s.acts(), s.Counters.device); err != nil {
		return err
	}
	putSpec(b, &libibverbs.FlowSpecCounterAction{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_COUNT, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecCounterAction{})),
		Counters: s.Counters.raw,
	})
	return nil
}

// Apply applies an action to packets that match. The rule must be closed before
// the action.
type Apply struct{ Action *Action }

func (s Apply) acts() *object.Object { return s.Action.self() }

func (s Apply) put(b *buffer, device *ibverbs.Device) error {
	if err := sibling.NotOfDevice(device, s.acts(), s.Action.device); err != nil {
		return err
	}
	putSpec(b, &libibverbs.FlowSpecActionHandle{
		Type: libibverbs.IBV_FLOW_SPEC_ACTION_HANDLE, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecActionHandle{})),
		Action: s.Action.raw,
	})
	return nil
}

const (
	attrSize = unsafe.Sizeof(libibverbs.FlowAttr{})
	specMax  = unsafe.Sizeof(libibverbs.FlowSpec{}) // FlowSpec is a union of all specs
)

// buffer is a rule in C's form: a struct ibv_flow_attr of 20 bytes, followed by
// the packed specs. As in C, a spec that contains a pointer may be at an
// address that is not aligned for the pointer.
type buffer struct {
	words [(attrSize + MaxSpecs*specMax + 7) / 8]uint64
	specs uintptr // number of bytes of the specs
}

func (b *buffer) attr() *libibverbs.FlowAttr {
	return (*libibverbs.FlowAttr)(unsafe.Pointer(&b.words))
}

// size returns the number of bytes in use.
func (b *buffer) size() uintptr { return attrSize + b.specs }

// putSpec appends a spec. The spec must hold no pointers to Go's memory.
func putSpec[T any](b *buffer, spec *T) {
	size := unsafe.Sizeof(*spec)
	all := unsafe.Slice((*byte)(unsafe.Pointer(&b.words)), unsafe.Sizeof(b.words))
	copy(all[b.size():], unsafe.Slice((*byte)(unsafe.Pointer(spec)), size))
	b.specs += size
}
