// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

const (
	bthLen  = 12
	icrcLen = 4

	mask24 = 1<<24 - 1
)

// Packet is a packet. Only the fields of the headers that Opcode implies are
// used.
type Packet struct {
	// Fields of the IP and UDP headers.
	SGID, DGID   GID
	FlowLabel    uint32 // 20 bits; IPv6 only
	TrafficClass uint8  // with IPv4, the type of service
	HopLimit     uint8  // with IPv4, the time to live
	SrcPort      uint16

	// Fields of the base transport header.
	Opcode     Opcode
	Solicited  bool
	MigReq     bool
	FECN, BECN bool
	AckReq     bool
	PKey       uint16
	DestQP     uint32 // 24 bits
	PSN        PSN

	// Fields of the DETH, for datagrams.
	QKey  uint32
	SrcQP uint32 // 24 bits

	// Field of the XRCETH, for requests of extended reliable connections.
	SRQ uint32 // number of the shared receive queue; 24 bits

	// Fields of the FETH, for FLUSHes.
	FlushType  uint8 // 4 bits: where the data must be placed
	FlushLevel uint8 // 2 bits: which memory is flushed

	// More is the number of packets after this one that the packet also
	// stands for: Payload has their payloads, too. Between machines it is 0.
	More uint16

	// Fields of the RETH, for WRITEs, READ requests, FLUSHes and ATOMIC
	// WRITEs, and of the AtomicETH.
	Addr    uint64
	RKey    uint32
	Length  uint32 // length of the whole message; not in the AtomicETH
	SwapAdd uint64 // only in the AtomicETH
	Compare uint64 // only in the AtomicETH

	// Fields of the AETH and the AtomicAckETH, for responses.
	Syndrome Syndrome
	MSN      uint32 // 24 bits
	Orig     uint64 // value of the word before the atomic operation

	Imm    uint32 // immediate data, with its four bytes as they are in memory
	InvKey uint32 // R_Key to invalidate

	Payload [][]byte // one or more pieces, without padding
}

// PayloadLen returns the number of bytes in the payload.
func (p *Packet) PayloadLen() int {
	n := 0
	for _, b := range p.Payload {
		n += len(b)
	}
	return n
}

// IsAck reports whether a packet only acknowledges others.
func (p *Packet) IsAck() bool { return p.Opcode.Operation() == RCAck && p.Syndrome.IsAck() }

// Size returns the number of bytes from the base transport header to the end of
// the ICRC.
func (p *Packet) Size() int { return p.Opcode.HeaderLen() + (p.PayloadLen()+3)&^3 + icrcLen }

// Append appends the packet to b, from the base transport header to the ICRC,
// which is zero until Flow.Seal is called. Append does not allocate if b has
// room for Size bytes.
func (p *Packet) Append(b []byte) []byte {
	b = p.AppendHeaders(b)
	for _, data := range p.Payload {
		b = append(b, data...)
	}
	var zero [3 + icrcLen]byte
	return append(b, zero[:-p.PayloadLen()&3+icrcLen]...)
}

// AppendHeaders appends all headers of the packet to b.
func (p *Packet) AppendHeaders(b []byte) []byte {
	pad := -p.PayloadLen() & 3
	b = append(b, byte(p.Opcode), bit(p.Solicited, 7)|bit(p.MigReq, 6)|byte(pad<<4))
	b = binary.BigEndian.AppendUint16(b, p.PKey)
	b = append32(b, bit(p.FECN, 7)|bit(p.BECN, 6), p.DestQP)
	b = append32(b, bit(p.AckReq, 7), uint32(p.PSN))

	has := opcodes[p.Opcode].has
	if has&deth != 0 {
		b = binary.BigEndian.AppendUint32(b, p.QKey)
		b = append32(b, 0, p.SrcQP)
	}
	if has&xrcETH != 0 {
		b = append32(b, 0, p.SRQ)
	}
	if has&feth != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(p.FlushLevel&3)<<4|uint32(p.FlushType&15))
	}
	if has&(reth|atomicETH) != 0 {
		b = binary.BigEndian.AppendUint64(b, p.Addr)
		b = binary.BigEndian.AppendUint32(b, p.RKey)
	}
	if has&reth != 0 {
		b = binary.BigEndian.AppendUint32(b, p.Length)
	}
	if has&atomicETH != 0 {
		b = binary.BigEndian.AppendUint64(b, p.SwapAdd)
		b = binary.BigEndian.AppendUint64(b, p.Compare)
	}
	if has&aeth != 0 {
		b = append32(b, byte(p.Syndrome), p.MSN)
	}
	if has&atomicAckETH != 0 {
		b = binary.BigEndian.AppendUint64(b, p.Orig)
	}
	if has&imm != 0 {
		b = binary.NativeEndian.AppendUint32(b, p.Imm)
	}
	if has&inv != 0 {
		b = binary.BigEndian.AppendUint32(b, p.InvKey)
	}
	if has&cnp != 0 {
		b = append(b, make([]byte, 16)...)
	}
	return b
}

// append32 appends 32 bits to b: the byte high and the lower 24 bits of low.
func append32(b []byte, high byte, low uint32) []byte {
	return binary.BigEndian.AppendUint32(b, uint32(high)<<24|low&mask24)
}

// bit returns a byte whose bit n is set if set is true, and otherwise 0.
func bit(set bool, n int) byte {
	if set {
		return 1 << n
	}
	return 0
}

// Parse decodes b, the payload of a UDP datagram from src to dst. It sets
// TrafficClass, HopLimit and FlowLabel to 0, since b does not have them. It
// does not check the ICRC (see Flow.Verify), reserved bits and padding.
//
// The payload becomes one slice of b. Parse reuses the array of p.Payload, so
// it allocates only if p has never had a payload.
//
// If Parse fails, p is unchanged. Parse accepts a payload of any length, since
// the responder must answer packets whose length does not match the path MTU or
// the message.
func (p *Packet) Parse(b []byte, src netip.AddrPort, dst netip.Addr) error {
	if len(b) < bthLen+icrcLen {
		return fmt.Errorf("packet has %d bytes, fewer than the minimum of %d", len(b), bthLen+icrcLen)
	}
	if len(b)%4 != 0 {
		return fmt.Errorf("packet has %d bytes, not a multiple of 4", len(b))
	}
	op := Opcode(b[0])
	if !op.Valid() {
		return fmt.Errorf("packet has the unknown %v", op)
	}
	if v := b[1] & 0xF; v != 0 {
		return fmt.Errorf("%v packet has transport version %d, not 0", op, v)
	}
	pad := int(b[1] >> 4 & 3)
	size := len(b) - op.HeaderLen() - icrcLen
	switch {
	case size < 0:
		return fmt.Errorf("%v packet has %d bytes, fewer than the %d of its headers", op, len(b), op.HeaderLen()+icrcLen)
	case pad > size:
		return fmt.Errorf("%v packet has %d bytes of padding in %d bytes of payload", op, pad, size)
	case size > 0 && !op.HasPayload():
		return fmt.Errorf("%v packet has %d bytes of payload, want none", op, size)
	}

	payload := p.Payload[:0]
	*p = Packet{
		SGID:      GIDOf(src.Addr()),
		DGID:      GIDOf(dst),
		SrcPort:   src.Port(),
		Opcode:    op,
		Solicited: b[1]&0x80 != 0,
		MigReq:    b[1]&0x40 != 0,
		PKey:      binary.BigEndian.Uint16(b[2:]),
		FECN:      b[4]&0x80 != 0,
		BECN:      b[4]&0x40 != 0,
		DestQP:    binary.BigEndian.Uint32(b[4:]) & mask24,
		AckReq:    b[8]&0x80 != 0,
		PSN:       PSN(binary.BigEndian.Uint32(b[8:]) & mask24),
	}
	has := opcodes[op].has
	h := b[bthLen:]
	if has&deth != 0 {
		p.QKey = binary.BigEndian.Uint32(h)
		p.SrcQP = binary.BigEndian.Uint32(h[4:]) & mask24
		h = h[8:]
	}
	if has&xrcETH != 0 {
		p.SRQ = binary.BigEndian.Uint32(h) & mask24
		h = h[4:]
	}
	if has&feth != 0 {
		bits := binary.BigEndian.Uint32(h)
		p.FlushType, p.FlushLevel = uint8(bits&15), uint8(bits>>4&3)
		h = h[4:]
	}
	if has&(reth|atomicETH) != 0 {
		p.Addr = binary.BigEndian.Uint64(h)
		p.RKey = binary.BigEndian.Uint32(h[8:])
		h = h[12:]
	}
	if has&reth != 0 {
		p.Length = binary.BigEndian.Uint32(h)
		h = h[4:]
	}
	if has&atomicETH != 0 {
		p.SwapAdd = binary.BigEndian.Uint64(h)
		p.Compare = binary.BigEndian.Uint64(h[8:])
		h = h[16:]
	}
	if has&aeth != 0 {
		p.Syndrome = Syndrome(h[0])
		p.MSN = binary.BigEndian.Uint32(h) & mask24
		h = h[4:]
	}
	if has&atomicAckETH != 0 {
		p.Orig = binary.BigEndian.Uint64(h)
		h = h[8:]
	}
	if has&imm != 0 {
		p.Imm = binary.NativeEndian.Uint32(h)
		h = h[4:]
	}
	if has&inv != 0 {
		p.InvKey = binary.BigEndian.Uint32(h)
		h = h[4:]
	}
	p.Payload = payload
	if size > pad {
		p.Payload = append(p.Payload, h[:size-pad:size-pad])
	}
	return nil
}
