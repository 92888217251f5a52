// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

var (
	from = netip.MustParseAddrPort("192.0.2.1:64492")
	to   = netip.MustParseAddr("192.0.2.9")
)

func TestPacketExamples(t *testing.T) {
	for _, c := range examples {
		t.Run(c.name, func(t *testing.T) {
			b := unhex(t, c.payload)
			src, dst := netip.MustParseAddrPort(c.src), netip.MustParseAddr(c.dst)
			want := c.packet
			want.SGID, want.DGID, want.SrcPort = wire.GIDOf(src.Addr()), wire.GIDOf(dst), src.Port()

			var p wire.Packet
			require.NoError(t, p.Parse(b, src, dst))
			require.Equal(t, want, p)

			require.Equal(t, len(b), want.Size())
			got := want.Append(nil)
			require.Equal(t, b[:len(b)-4], got[:len(got)-4])
			require.Equal(t, make([]byte, 4), got[len(got)-4:])
		})
	}
}

// full returns a packet that has a value in every field.
func full(o wire.Opcode) wire.Packet {
	return wire.Packet{
		Opcode: o, Solicited: true, MigReq: true, FECN: true, BECN: true, AckReq: true,
		PKey: 0x8001, DestQP: 0x020304, PSN: 0x050607, QKey: 0x08090A0B, SrcQP: 0x0C0D0E,
		FlushType: 3, FlushLevel: 1, Addr: 0x1011121314151617, RKey: 0x18191A1B, Length: 0x1C1D1E1F, SwapAdd: 0x2021222324252627, Compare: 0x28292A2B2C2D2E2F,
		Syndrome: 0x30, MSN: 0x313233, Orig: 0x3435363738393A3B,
		Imm: binary.NativeEndian.Uint32([]byte{0x40, 0x41, 0x42, 0x43}), InvKey: 0x44454647,
		SRQ: 0x484950,
	}
}

// Where each header puts its fields.
func TestPacketHeaders(t *testing.T) {
	bth := func(o wire.Opcode, flags string) string { return hexByte(o) + flags + "8001 c0 020304 80 050607" }
	for o, headers := range map[wire.Opcode]string{
		wire.RCSendLastImm:  "40414243",
		wire.RCWriteOnlyImm: "1011121314151617 18191a1b 1c1d1e1f 40414243",
		wire.RCReadRequest:  "1011121314151617 18191a1b 1c1d1e1f",
		wire.RCFlush:        "00000013 1011121314151617 18191a1b 1c1d1e1f",
		wire.RCAtomicWrite:  "1011121314151617 18191a1b 1c1d1e1f",
		wire.RCReadMiddle:   "",
		wire.RCReadLast:     "30 313233",
		wire.RCAtomicAck:    "30 313233 3435363738393a3b",
		wire.RCCompareSwap:  "1011121314151617 18191a1b 2021222324252627 28292a2b2c2d2e2f",
		wire.RCSendOnlyInv:  "44454647",
		wire.UDSendOnlyImm:  "08090a0b 00 0c0d0e 40414243",

		wire.XRCSendMiddle:   "00 484950",
		wire.XRCSendOnlyInv:  "00 484950 44454647",
		wire.XRCWriteMiddle:  "00 484950",
		wire.XRCWriteOnlyImm: "00 484950 1011121314151617 18191a1b 1c1d1e1f 40414243",
		wire.XRCReadRequest:  "00 484950 1011121314151617 18191a1b 1c1d1e1f",
		wire.XRCReadMiddle:   "",
		wire.XRCAck:          "30 313233",
		wire.XRCAtomicAck:    "30 313233 3435363738393a3b",
		wire.XRCFetchAdd:     "00 484950 1011121314151617 18191a1b 2021222324252627 28292a2b2c2d2e2f",
	} {
		p := full(o)
		require.Equal(t, unhex(t, bth(o, "c0")+headers+"00000000"), p.Append(nil), o.String())
		if !o.HasPayload() {
			continue
		}
		for n, padding := range map[int]string{1: "000000", 2: "0000", 3: "00", 4: ""} {
			p.Payload = [][]byte{{0xF1}, nil, bytes.Repeat([]byte{0xF2}, n-1)}
			flags := hexByte(0xC0 | len(padding)/2<<4)
			want := unhex(t, bth(o, flags)+headers+"f1"+"f2f2f2"[:2*(n-1)]+padding+"00000000")
			require.Equal(t, want, p.Append(nil), "%v of %d bytes", o, n)
			require.Equal(t, n, p.PayloadLen())
			require.Len(t, want, p.Size())
		}
	}
}

func hexByte[T ~uint8 | ~int](v T) string {
	const digits = "0123456789abcdef"
	return string([]byte{digits[v>>4&15], digits[v&15]})
}

// Each flag is a bit of its own.
func TestPacketFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(p *wire.Packet)
		at   int
		bit  byte
	}{
		{"Solicited", func(p *wire.Packet) { p.Solicited = true }, 1, 0x80},
		{"MigReq", func(p *wire.Packet) { p.MigReq = true }, 1, 0x40},
		{"FECN", func(p *wire.Packet) { p.FECN = true }, 4, 0x80},
		{"BECN", func(p *wire.Packet) { p.BECN = true }, 4, 0x40},
		{"AckReq", func(p *wire.Packet) { p.AckReq = true }, 8, 0x80},
	} {
		want := make([]byte, 16)
		want[0], want[c.at] = byte(wire.RCReadMiddle), c.bit
		p := wire.Packet{Opcode: wire.RCReadMiddle}
		c.set(&p)
		require.Equal(t, want, p.Append(nil), c.name)

		var got wire.Packet
		require.NoError(t, got.Parse(want, from, to))
		got.SGID, got.DGID, got.SrcPort = wire.GID{}, wire.GID{}, 0
		require.Equal(t, p, got, c.name)
	}
}

// Numbers that are too large do not run into their neighbours.
func TestPacketCutsNumbers(t *testing.T) {
	p := wire.Packet{Opcode: wire.UDSendOnly, DestQP: 0xFF000001, PSN: 0xFF000002, SrcQP: 0xFF000003}
	require.Equal(t, unhex(t, "64000000 00000001 00000002 00000000 00000003 00000000"), p.Append(nil))
	p = wire.Packet{Opcode: wire.XRCSendOnly, SRQ: 0xFF000005}
	require.Equal(t, unhex(t, "a4000000 00000000 00000000 00000005 00000000"), p.Append(nil))
	p = wire.Packet{Opcode: wire.RCAck, MSN: 0xFF000004}
	require.Equal(t, unhex(t, "11000000 00000000 00000000 00000004 00000000"), p.Append(nil))
}

func TestParse(t *testing.T) {
	for o := range wire.Opcode(255) {
		if !o.Valid() {
			continue
		}
		p := full(o)
		for n := 0; n < 6 && (n == 0 || o.HasPayload()); n++ {
			p.Payload = nil
			if n > 0 {
				p.Payload = [][]byte{[]byte{1, 2, 3, 4, 5}[:n]}
			}
			b := p.Append(nil)
			// A packet that has had other contents, and its room for a payload.
			got := full(o)
			got.Payload = make([][]byte, 3)
			got.TrafficClass, got.HopLimit, got.FlowLabel = 1, 2, 3
			room := &got.Payload[0]
			require.NoError(t, got.Parse(b, from, to))
			require.Equal(t, wire.GIDOf(from.Addr()), got.SGID)
			require.Equal(t, wire.GIDOf(to), got.DGID)
			require.Equal(t, from.Port(), got.SrcPort)
			require.Zero(t, got.FlowLabel)
			require.Zero(t, got.TrafficClass)
			require.Zero(t, got.HopLimit)
			require.Equal(t, b, got.Append(nil), o.String())

			require.Equal(t, o.HasDETH(), got.QKey != 0)
			require.Equal(t, o.HasXRCETH(), got.SRQ != 0)
			require.Equal(t, o.HasRETH(), got.Length != 0)
			require.Equal(t, o.HasAtomicETH(), got.Compare != 0)
			require.Equal(t, o.HasAETH(), got.MSN != 0)
			require.Equal(t, o.HasAtomicAckETH(), got.Orig != 0)
			require.Equal(t, o.HasImm(), got.Imm != 0)
			require.Equal(t, o.HasInv(), got.InvKey != 0)
			if n == 0 {
				require.Empty(t, got.Payload)
				continue
			}
			require.Equal(t, p.Payload, got.Payload)
			require.Same(t, room, &got.Payload[0])
			require.Same(t, &b[o.HeaderLen()], &got.Payload[0][0], "the payload is a part of what was parsed")
			require.Equal(t, n, cap(got.Payload[0]), "the payload does not reach into the padding")
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ packet, message string }{
		{"", "packet has 0 bytes, fewer than the minimum of 16"},
		{"04000000 00000000 00000000 000000", "packet has 15 bytes, fewer than the minimum of 16"},
		{"04000000 00000000 00000000 00000000 00", "packet has 17 bytes, not a multiple of 4"},
		{"1b000000 00000000 00000000 00000000", "packet has the unknown opcode 0x1b"},
		{"1c000000 00000000 00000000 00000000", "RC FLUSH packet has 16 bytes, fewer than the 36 of its headers"},
		{"ff000000 00000000 00000000 00000000", "packet has the unknown opcode 0xff"},
		{"04010000 00000000 00000000 00000000", "RC SEND only packet has transport version 1, not 0"},
		{"040f0000 00000000 00000000 00000000", "RC SEND only packet has transport version 15, not 0"},
		{"04100000 00000000 00000000 00000000", "RC SEND only packet has 1 bytes of padding in 0 bytes of payload"},
		{"11000000 00000000 00000000 00000000", "RC ACK packet has 16 bytes, fewer than the 20 of its headers"},
		{"11100000 00000000 00000000 00000000 00000000", "RC ACK packet has 1 bytes of padding in 0 bytes of payload"},
		{
			"11000000 00000000 00000000 00000000 00000000 00000000",
			"RC ACK packet has 4 bytes of payload, want none",
		},
		{
			"0c000000 00000000 00000000 00000000 00000000 00000000 00000000",
			"RC READ request packet has 28 bytes, fewer than the 32 of its headers",
		},
		{"81000000 00000000 00000000 00000000", "CNP packet has 16 bytes, fewer than the 32 of its headers"},
	} {
		p := full(wire.RCSendOnly)
		was := p
		require.EqualError(t, p.Parse(unhex(t, c.packet), from, to), c.message)
		require.Equal(t, was, p, "an error leaves the packet as it was")
	}
}

func TestPacketAllocatesNothing(t *testing.T) {
	p := full(wire.UDSendOnlyImm)
	p.SGID, p.DGID = wire.GIDOf(from.Addr()), wire.GIDOf(to)
	p.Payload = [][]byte{make([]byte, 1000), make([]byte, 21)}
	b := make([]byte, 0, p.Size())
	got := wire.Packet{Payload: make([][]byte, 1)}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		packet := p.Append(b)
		f := wire.NewFlow(p.SGID, p.DGID, 5)
		f.Seal(packet, 7)
		if id, ok := f.Verify(packet, 0); !ok || id != 7 {
			t.Error("wrong ICRC")
		}
		if err := got.Parse(packet, from, to); err != nil {
			t.Error(err)
		}
		if h := p.GRH(); h[20] != 0x45 {
			t.Error("wrong route header")
		}
	}))
}

func TestGRH(t *testing.T) {
	p := wire.Packet{
		SGID: wire.GIDOf(from.Addr()), DGID: wire.GIDOf(to), TrafficClass: 0x2A, HopLimit: 64, FlowLabel: 0x12345,
		Opcode: wire.UDSendOnly, Payload: [][]byte{make([]byte, 30)},
	}
	// 84 bytes: IPv4 20, UDP 8, BTH 12, DETH 8, payload 30, padding 2, ICRC 4.
	// The header's words 452a + 0054 + 4000 + 4011 + c000 + 0201 + c000 + 0209
	// give 4999 + 2, thus 499b: its complement is b664.
	require.Equal(t, unhex(t, `0000000000000000000000000000000000000000
		452a0054 00004000 4011b664 c0000201 c0000209`), sliceOf(p.GRH()))

	p.SGID = wire.GIDOf(netip.MustParseAddr("2001:db8::1"))
	p.DGID = wire.GIDOf(netip.MustParseAddr("2001:db8::9"))
	require.Equal(t, unhex(t, `62a12345 0040 11 40
		20010db8000000000000000000000001 20010db8000000000000000000000009`), sliceOf(p.GRH()))
	p.FlowLabel = 0xFFF12345
	require.Equal(t, byte(0x62), p.GRH()[0])

	// All checksums, those among them whose carry makes another.
	p.DGID = wire.GIDOf(to)
	for x := range 1 << 16 {
		p.SGID = wire.GIDOf(netip.AddrFrom4([4]byte{1, 2, byte(x >> 8), byte(x)}))
		h := p.GRH()
		if sum(h[20:]) != 0xFFFF {
			require.Failf(t, "wrong checksum", "%x", h)
		}
	}
}

func sliceOf(h [wire.GRHLen]byte) []byte { return h[:] }

// sum returns the sum of the words of an IPv4 header, carries added: ones if it
// is right.
func sum(h []byte) uint16 {
	s := uint32(0)
	for word := range slices.Chunk(h, 2) {
		s += uint32(binary.BigEndian.Uint16(word))
		s = s>>16 + s&0xFFFF
	}
	return uint16(s)
}

func FuzzParse(f *testing.F) {
	for _, c := range examples {
		f.Add(unhex(f, c.payload))
	}
	for o := range wire.Opcode(255) {
		if o.Valid() {
			p := full(o)
			if o.HasPayload() {
				p.Payload = [][]byte{{1, 2, 3}}
			}
			f.Add(p.Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		was := bytes.Clone(b)
		var p wire.Packet
		if err := p.Parse(b, from, to); err != nil {
			require.Equal(t, wire.Packet{}, p)
			return
		}
		require.Equal(t, len(b), p.Size())
		_ = p.GRH()
		again := p.Append(nil)
		require.Len(t, again, len(b))
		var q wire.Packet
		require.NoError(t, q.Parse(again, from, to))
		require.Equal(t, p, q)
		require.Equal(t, was, b)
	})
}

func FuzzPacket(f *testing.F) {
	f.Add(uint8(wire.RCFlush), uint8(0xFF), uint64(0x13), uint64(2), uint64(3), uint64(4), []byte(nil), 0)
	f.Add(uint8(wire.RCAtomicWrite), uint8(0xFF), uint64(1), uint64(2), uint64(3), uint64(4), []byte("12345678"), 3)
	f.Add(uint8(wire.XRCWriteOnlyImm), uint8(0xFF), uint64(1), uint64(1)<<40, uint64(3), uint64(4), []byte("payload"), 3)
	f.Add(uint8(wire.RCWriteOnlyImm), uint8(0xFF), uint64(1), uint64(2), uint64(3), uint64(4), []byte("payload"), 3)
	f.Fuzz(func(t *testing.T, op, flags uint8, u, v, w, x uint64, payload []byte, cut int) {
		o := wire.Opcode(op)
		if !o.Valid() {
			t.Skip()
		}
		p := wire.Packet{
			SGID: wire.GIDOf(from.Addr()), DGID: wire.GIDOf(to), SrcPort: from.Port(),
			Opcode: o, Solicited: flags&1 != 0, MigReq: flags&2 != 0, FECN: flags&4 != 0, BECN: flags&8 != 0, AckReq: flags&16 != 0,
			PKey: uint16(u), DestQP: uint32(u >> 40), PSN: wire.PSN(v >> 40),
		}
		if o.HasDETH() {
			p.QKey, p.SrcQP = uint32(w), uint32(x>>40)
		}
		if o.HasXRCETH() {
			p.SRQ = uint32(v >> 20 & 0xFFFFFF)
		}
		if o.HasRETH() || o.HasAtomicETH() {
			p.Addr, p.RKey = w, uint32(x)
		}
		if o.HasFETH() {
			p.FlushType, p.FlushLevel = uint8(u&15), uint8(u>>4&3)
		}
		if o.HasRETH() {
			p.Length = uint32(x >> 32)
		}
		if o.HasAtomicETH() {
			p.SwapAdd, p.Compare = u, v
		}
		if o.HasAETH() {
			p.Syndrome, p.MSN = wire.Syndrome(w), uint32(x>>40)
		}
		if o.HasAtomicAckETH() {
			p.Orig = u
		}
		if o.HasImm() {
			p.Imm = uint32(v)
		}
		if o.HasInv() {
			p.InvKey = uint32(v)
		}
		if o.HasPayload() && len(payload) > 0 {
			p.Payload = [][]byte{payload}
		}

		// However the payload is cut, it is the same packet.
		pieces := p
		if len(p.Payload) > 0 {
			n := int(uint(cut) % uint(len(payload)+1))
			pieces.Payload = [][]byte{payload[:n], payload[n:]}
		}
		b := pieces.Append(nil)
		require.Len(t, b, pieces.Size())
		var got wire.Packet
		require.NoError(t, got.Parse(b, from, to))
		require.Equal(t, p, got)
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{0, 1024, 4096} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := wire.Packet{Opcode: wire.RCWriteOnly, DestQP: 17, Length: uint32(n)}
			if n > 0 {
				p.Payload = [][]byte{make([]byte, n)}
			}
			buf := make([]byte, 0, p.Size())
			b.ReportAllocs()
			for b.Loop() {
				_ = p.Append(buf)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{0, 1024, 4096} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			p := wire.Packet{Opcode: wire.RCWriteOnly, DestQP: 17, Length: uint32(n), Payload: [][]byte{make([]byte, n)}}
			packet := p.Append(nil)
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Parse(packet, from, to); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
