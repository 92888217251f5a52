// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
)

// GRH is the global route header of a received datagram: a GRH on InfiniBand
// and RoCE v1, and the IP header in its place on RoCE v2. Numbers are in host
// byte order.
type GRH struct {
	Version      int    // IP version: 4 or 6; 6 for a GRH
	TrafficClass uint8  // DSCP in the upper 6 bits
	FlowLabel    uint32 // 20 bits; 0 with IPv4
	PayloadLen   int    // bytes after the header
	NextHeader   uint8  // protocol of the payload: 27 after a GRH, 17 (UDP) on RoCE v2
	HopLimit     uint8  // remaining hops
	SGID, DGID   GID    // sender and receiver; IPv4 addresses are mapped as by GIDFromAddr
}

// ParseGRH parses the header in the first GRHLen bytes of a received datagram's
// memory. Call it only if WC.HasGRH returns true. It distinguishes an IPv4
// header, which is in the last 20 of those bytes, from an IPv6 header as
// ibv_init_ah_from_wc(3) does.
func ParseGRH(b []byte) (GRH, error) {
	if len(b) < GRHLen {
		return GRH{}, cerr.Refuse("ParseGRH", "", "b has %d bytes, fewer than the %d of the header", len(b), GRHLen)
	}
	v6, v4 := b[:GRHLen], b[GRHLen-ipv4Len:GRHLen]
	if v6[0]>>4 == 6 && !wholeIPv4(v4) {
		return GRH{
			Version:      6,
			TrafficClass: uint8(binary.BigEndian.Uint16(v6) >> 4),
			FlowLabel:    binary.BigEndian.Uint32(v6) & maxFlowLabel,
			PayloadLen:   int(binary.BigEndian.Uint16(v6[4:])),
			NextHeader:   v6[6], HopLimit: v6[7], SGID: GID(v6[8:24]), DGID: GID(v6[24:40]),
		}, nil
	}
	length := int(binary.BigEndian.Uint16(v4[2:]))
	if v4[0] != ipv4Start || length < ipv4Len {
		return GRH{}, fmt.Errorf("parse a GRH: the bytes are neither a global route header nor an IP header: %w", syscall.EPROTONOSUPPORT)
	}
	return GRH{
		Version: 4, TrafficClass: v4[1], PayloadLen: length - ipv4Len, HopLimit: v4[8], NextHeader: v4[9],
		SGID: mappedGID(v4[12:16]), DGID: mappedGID(v4[16:20]),
	}, nil
}

const (
	ipv4Len   = 20
	ipv4Start = 4<<4 | ipv4Len/4 // version, and the length in words of a header without options
)

// wholeIPv4 reports whether the bytes are an IPv4 header with a correct
// checksum. The bytes before an IPv4 header can look like the start of an IPv6
// header.
func wholeIPv4(b []byte) bool {
	if b[0] != ipv4Start {
		return false
	}
	sum := uint32(0)
	for i := 0; i < ipv4Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

func mappedGID(ipv4 []byte) GID {
	return GID{10: 0xff, 11: 0xff, 12: ipv4[0], 13: ipv4[1], 14: ipv4[2], 15: ipv4[3]}
}
