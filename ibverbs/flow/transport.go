package flow

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// TCP matches a TCP header.
type TCP struct {
	Inner            bool
	DstPort, SrcPort Match[uint16]
}

func (s TCP) put(b *buffer, _ *ibverbs.Device) error {
	return putPorts(b, specType(libibverbs.IBV_FLOW_SPEC_TCP, s.Inner), s.DstPort, s.SrcPort)
}

// UDP matches a UDP header.
type UDP struct {
	Inner            bool
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
	return checkAll("DstPort", dst, "SrcPort", src)
}

// ESP matches an ESP header of IPsec.
type ESP struct {
	Inner    bool
	SPI, Seq Match[uint32]
}

func (s ESP) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecEsp{
		Type: specType(libibverbs.IBV_FLOW_SPEC_ESP, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecEsp{})),
		Val:  libibverbs.FlowEspFilter{Spi: be32(s.SPI.Value), Seq: be32(s.Seq.Value)},
		Mask: libibverbs.FlowEspFilter{Spi: be32(s.SPI.Mask), Seq: be32(s.Seq.Mask)},
	})
	return checkAll("SPI", s.SPI, "Seq", s.Seq)
}

// VXLAN matches the header of a VXLAN tunnel. Specs of the packet in it
// follow, with Inner.
type VXLAN struct {
	VNI Match[uint32] // 24 bits
}

func (s VXLAN) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecTunnel{
		Type: libibverbs.IBV_FLOW_SPEC_VXLAN_TUNNEL, Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecTunnel{})),
		Val:  libibverbs.FlowTunnelFilter{TunnelId: be32(s.VNI.Value)},
		Mask: libibverbs.FlowTunnelFilter{TunnelId: be32(lowBits(s.VNI, 24).Mask)},
	})
	return checkAll("VNI", lowBits(s.VNI, 24))
}

// GRE matches a GRE header.
type GRE struct {
	Flags    Match[uint16] // the first 16 bits: checksum 15, key 13, sequence number 12, version 2 to 0
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
	return checkAll("Flags", s.Flags, "Protocol", s.Protocol, "Key", s.Key)
}

// MPLS matches an entry of an MPLS label stack, where it stands among the
// specs.
type MPLS struct {
	Inner bool
	Entry Match[uint32] // label 31 to 12, traffic class 11 to 9, bottom of stack 8, TTL 7 to 0
}

func (s MPLS) put(b *buffer, _ *ibverbs.Device) error {
	putSpec(b, &libibverbs.FlowSpecMpls{
		Type: specType(libibverbs.IBV_FLOW_SPEC_MPLS, s.Inner), Size: uint16(unsafe.Sizeof(libibverbs.FlowSpecMpls{})),
		Val:  libibverbs.FlowMplsFilter{Label: be32(s.Entry.Value)},
		Mask: libibverbs.FlowMplsFilter{Label: be32(s.Entry.Mask)},
	})
	return checkAll("Entry", s.Entry)
}
