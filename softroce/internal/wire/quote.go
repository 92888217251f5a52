// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ParseQuote decodes the beginning of a packet from src to dst. Hosts quote
// that much when they refuse the packet. ParseQuote sets only the addresses and
// the fields of the base transport header. If b has a whole message of the
// connection manager, it also sets the fields of the DETH and the payload.
func (p *Packet) ParseQuote(b []byte, src, dst netip.Addr) error {
	if len(b) < bthLen {
		return fmt.Errorf("quoted packet has %d bytes, fewer than the %d of the base transport header", len(b), bthLen)
	}
	op := Opcode(b[0])
	if !op.Valid() {
		return fmt.Errorf("quoted packet has the unknown %v", op)
	}
	payload := p.Payload[:0]
	*p = Packet{
		SGID: GIDOf(src), DGID: GIDOf(dst), Opcode: op, PKey: binary.BigEndian.Uint16(b[2:]),
		DestQP: binary.BigEndian.Uint32(b[4:]) & mask24, PSN: PSN(binary.BigEndian.Uint32(b[8:]) & mask24), Payload: payload,
	}
	const dethLen = 8
	if op == UDSendOnly && len(b) >= bthLen+dethLen+MADLen {
		p.QKey = binary.BigEndian.Uint32(b[bthLen:])
		p.SrcQP = binary.BigEndian.Uint32(b[bthLen+4:]) & mask24
		p.Payload = append(p.Payload, b[bthLen+dethLen:][:MADLen:MADLen])
	}
	return nil
}
