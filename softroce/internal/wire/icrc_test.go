// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// Packets that Linux's Soft-RoCE, a program in user space that Soft-RoCE
// understood, and a network card have sent.
var examples = []struct {
	name     string
	src, dst string
	id       uint16
	payload  string // of UDP
	packet   wire.Packet
}{
	{
		"ACK", "192.0.2.1:64492", "192.0.2.9", 0xF58E,
		"1100ffff000a0b0c00b779c9 1f000003 735b8a0f",
		wire.Packet{Opcode: wire.RCAck, PKey: 0xFFFF, DestQP: 0x0A0B0C, PSN: 0xB779C9, Syndrome: wire.Ack, MSN: 3},
	},
	{
		"ACK over IPv6", "[2001:db8::1]:57510", "2001:db8::9", 0,
		"1100ffff000a0b0c004227fe 1f000002 b2dfa3ae",
		wire.Packet{Opcode: wire.RCAck, PKey: 0xFFFF, DestQP: 0x0A0B0C, PSN: 0x4227FE, Syndrome: wire.Ack, MSN: 2},
	},
	{
		"SEND", "192.0.2.9:4791", "192.0.2.1", 0,
		"0400ffff0000001180b779c9 0000700000000000005eed0100000040 3e1ccbdb",
		wire.Packet{
			Opcode: wire.RCSendOnly, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0xB779C9,
			Payload: [][]byte{{0, 0, 0x70, 0, 0, 0, 0, 0, 0, 0x5E, 0xED, 1, 0, 0, 0, 0x40}},
		},
	},
	{
		"CNP", "10.0.17.1:0", "10.0.18.1", 0x718C,
		"8100ffff4000011800000000 00000000000000000000000000000000 82fd002a",
		wire.Packet{Opcode: wire.CNP, PKey: 0xFFFF, BECN: true, DestQP: 0x118},
	},
}

// flow returns the flow of an example or of a test that has the same addresses.
func flow(src, dst string) wire.Flow {
	from := netip.MustParseAddrPort(src)
	return wire.NewFlow(wire.GIDOf(from.Addr()), wire.GIDOf(netip.MustParseAddr(dst)), from.Port())
}

func TestICRCExamples(t *testing.T) {
	for _, c := range examples {
		t.Run(c.name, func(t *testing.T) {
			b := unhex(t, c.payload)
			n := len(b) - 4
			f := flow(c.src, c.dst)
			require.Equal(t, binary.LittleEndian.Uint32(b[n:]), f.ICRC(b[:n], c.id))

			id, ok := f.Verify(b, 0)
			require.True(t, ok)
			require.Equal(t, c.id, id)

			sealed := append(b[:n:n], 0, 0, 0, 0)
			f.Seal(sealed, c.id)
			require.Equal(t, b, sealed)
		})
	}
}

// covered returns the bytes that the ICRC is defined over, one after the other.
func covered(src netip.AddrPort, dst netip.Addr, id uint16, b []byte) []byte {
	c := bytes.Repeat([]byte{0xFF}, 8)
	size := uint16(8 + len(b) + 4)
	if dst.Is4() {
		c = append(c, 0x45, 0xFF)
		c = binary.BigEndian.AppendUint16(c, 20+size)
		c = binary.BigEndian.AppendUint16(c, id)
		c = append(c, 0x40, 0, 0xFF, 17, 0xFF, 0xFF)
	} else {
		c = append(c, 0x6F, 0xFF, 0xFF, 0xFF)
		c = binary.BigEndian.AppendUint16(c, size)
		c = append(c, 17, 0xFF)
	}
	c = append(c, src.Addr().AsSlice()...)
	c = append(c, dst.AsSlice()...)
	c = binary.BigEndian.AppendUint16(c, src.Port())
	c = binary.BigEndian.AppendUint16(c, 4791)
	c = binary.BigEndian.AppendUint16(c, size)
	c = append(c, 0xFF, 0xFF)
	c = append(c, b...)
	c[len(c)-len(b)+4] = 0xFF
	return c
}

func TestICRCCovers(t *testing.T) {
	require.Equal(t,
		unhex(t, `ffffffffffffffff 45ff0030f58e4000ff11ffffc0000201c0000209
			fbec12b7001cffff 1100ffffff0a0b0c00b779c9 1f000003`),
		covered(netip.MustParseAddrPort("192.0.2.1:64492"), netip.MustParseAddr("192.0.2.9"), 0xF58E,
			unhex(t, "1100ffff000a0b0c00b779c9 1f000003")))
	require.Equal(t,
		unhex(t, `ffffffffffffffff 6fffffff001c11ff20010db800000000000000000000000120010db8000000000000000000000009
			e0a612b7001cffff 1100ffffff0a0b0c004227fe 1f000002`),
		covered(netip.MustParseAddrPort("[2001:db8::1]:57510"), netip.MustParseAddr("2001:db8::9"), 0,
			unhex(t, "1100ffff000a0b0c004227fe 1f000002")))

	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for range 500 {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte(random(4))), uint16(r.Uint32()))
		dst := netip.AddrFrom4([4]byte(random(4)))
		id := uint16(r.Uint32())
		if r.IntN(2) == 0 {
			src = netip.AddrPortFrom(netip.AddrFrom16([16]byte(random(16))), src.Port())
			dst = netip.AddrFrom16([16]byte(random(16)))
			id = 0
		}
		b := random(12 + 4*r.IntN(1100))
		f := wire.NewFlow(wire.GIDOf(src.Addr()), wire.GIDOf(dst), src.Port())
		require.Equal(t, crc32.ChecksumIEEE(covered(src, dst, id, b)), f.ICRC(b, id))

		b = append(b, 0, 0, 0, 0)
		f.Seal(b, id)
		got, ok := f.Verify(b, uint16(r.Uint32()))
		require.True(t, ok)
		require.Equal(t, id, got)
	}
}

// Every identification is found.
func TestVerifyFindsID(t *testing.T) {
	f := flow("192.0.2.1:64492", "192.0.2.9")
	for _, size := range []int{16, 20, 1056, 4124, 65504} {
		b := make([]byte, size)
		for id := range 1 << 16 {
			if size > 4096 && id%257 != 0 {
				continue
			}
			f.Seal(b, uint16(id))
			for _, likely := range []uint16{0, uint16(id), uint16(id) - 1, ^uint16(id)} {
				got, ok := f.Verify(b, likely)
				require.True(t, ok)
				require.Equal(t, uint16(id), got)
			}
		}
	}
}

// Every wrong bit is found but for those of the byte that the ICRC does not
// cover.
func TestVerifyFindsWrongBits(t *testing.T) {
	for _, c := range examples {
		b := unhex(t, c.payload)
		long := make([]byte, 1056)
		copy(long, b)
		flow(c.src, c.dst).Seal(long, c.id)
		for _, b := range [][]byte{b, long} {
			for i := range 8 * len(b) {
				b[i/8] ^= 1 << (i % 8)
				_, ok := flow(c.src, c.dst).Verify(b, 0)
				require.Equal(t, i/8 == 4, ok, "%s: bit %d of byte %d of %d", c.name, i%8, i/8, len(b))
				b[i/8] ^= 1 << (i % 8)
			}
		}
	}
}

// What the ICRC covers beside the packet counts too: addresses and ports.
func TestVerifyFindsWrongFlow(t *testing.T) {
	for _, c := range examples {
		b := unhex(t, c.payload)
		from, to := netip.MustParseAddrPort(c.src), netip.MustParseAddr(c.dst)
		for bit := range to.BitLen() {
			src, dst := from.Addr().AsSlice(), to.AsSlice()
			src[bit/8] ^= 1 << (bit % 8)
			dst[bit/8] ^= 1 << (bit % 8)
			wrongSrc, _ := netip.AddrFromSlice(src)
			wrongDst, _ := netip.AddrFromSlice(dst)
			_, ok := wire.NewFlow(wire.GIDOf(wrongSrc), wire.GIDOf(to), from.Port()).Verify(b, 0)
			require.False(t, ok, "%s: bit %d of the source", c.name, bit)
			_, ok = wire.NewFlow(wire.GIDOf(from.Addr()), wire.GIDOf(wrongDst), from.Port()).Verify(b, 0)
			require.False(t, ok, "%s: bit %d of the destination", c.name, bit)
		}
		for bit := range 16 {
			_, ok := wire.NewFlow(wire.GIDOf(from.Addr()), wire.GIDOf(to), from.Port()^1<<bit).Verify(b, 0)
			require.False(t, ok, "%s: bit %d of the port", c.name, bit)
		}
	}
}

// Of all ICRCs, one in 65,536 is right for some identification: about one of
// those that differ in one half.
func TestVerifyPassesFew(t *testing.T) {
	b := unhex(t, examples[0].payload)
	f := flow(examples[0].src, examples[0].dst)
	for _, half := range [][]byte{b[len(b)-4 : len(b)-2], b[len(b)-2:]} {
		was := binary.LittleEndian.Uint16(half)
		passed := 0
		for x := range 1 << 16 {
			binary.LittleEndian.PutUint16(half, uint16(x))
			if _, ok := f.Verify(b, 0); ok {
				passed++
			}
		}
		require.Positive(t, passed)
		require.Less(t, passed, 16)
		binary.LittleEndian.PutUint16(half, was)
	}
}

func TestVerifyLengths(t *testing.T) {
	f := flow("192.0.2.1:64492", "192.0.2.9")
	for _, size := range []int{0, 3, 4, 12, 15, 17, 18, 19, 65540, 1 << 20} {
		b := make([]byte, size)
		if size > 16 {
			f.Seal(b, 0)
		}
		_, ok := f.Verify(b, 0)
		require.False(t, ok, "%d bytes", size)
	}
}

func FuzzVerify(f *testing.F) {
	f.Add(uint64(0xC0000201), uint64(0xC0000209), uint16(64492), uint16(0xF58E), false, []byte("0123456789ab"))
	f.Add(uint64(1), uint64(9), uint16(0), uint16(0), true, make([]byte, 1040))
	f.Fuzz(func(t *testing.T, from, to uint64, port, id uint16, is6 bool, b []byte) {
		if len(b) < 12 || len(b) > 65500 {
			t.Skip()
		}
		var src, dst netip.Addr
		if is6 {
			var x, y [16]byte
			binary.BigEndian.PutUint64(x[:], from)
			binary.BigEndian.PutUint64(y[:], to)
			src, dst, id = netip.AddrFrom16(x), netip.AddrFrom16(y), 0
		} else {
			var x, y [4]byte
			binary.BigEndian.PutUint32(x[:], uint32(from))
			binary.BigEndian.PutUint32(y[:], uint32(to))
			src, dst = netip.AddrFrom4(x), netip.AddrFrom4(y)
		}
		fl := wire.NewFlow(wire.GIDOf(src), wire.GIDOf(dst), port)
		require.Equal(t, crc32.ChecksumIEEE(covered(netip.AddrPortFrom(src, port), dst, id, b)), fl.ICRC(b, id))
		_, _ = fl.Verify(b, 0)
		b = append(b[:len(b)&^3:len(b)&^3], 0, 0, 0, 0)
		fl.Seal(b, id)
		got, ok := fl.Verify(b, 0)
		require.True(t, ok)
		require.Equal(t, id, got)
	})
}

var sizes = []struct {
	name string
	size int // of the UDP payload
}{{"ACK", 20}, {"1024", 1040}, {"4096", 4112}}

func BenchmarkSeal(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			f := flow("192.0.2.1:64492", "192.0.2.9")
			packet := make([]byte, s.size)
			b.SetBytes(int64(s.size))
			for b.Loop() {
				f.Seal(packet, 7)
			}
		})
	}
}

func BenchmarkVerify(b *testing.B) {
	for _, c := range []struct {
		name, src, dst string
		id             uint16
	}{
		{"IPv4", "192.0.2.1:64492", "192.0.2.9", 0xF58E},
		{"IPv4 identification 0", "192.0.2.1:64492", "192.0.2.9", 0},
		{"IPv6", "[2001:db8::1]:57510", "2001:db8::9", 0},
	} {
		for _, s := range sizes {
			b.Run(c.name+"/"+s.name, func(b *testing.B) {
				f := flow(c.src, c.dst)
				packet := make([]byte, s.size)
				f.Seal(packet, c.id)
				b.SetBytes(int64(s.size))
				for b.Loop() {
					if _, ok := f.Verify(packet, 0); !ok {
						b.Fatal("wrong ICRC")
					}
				}
			})
		}
	}
}

func BenchmarkNewFlow(b *testing.B) {
	src, dst := wire.GIDOf(netip.MustParseAddr("192.0.2.1")), wire.GIDOf(netip.MustParseAddr("192.0.2.9"))
	for b.Loop() {
		_ = wire.NewFlow(src, dst, 64492)
	}
}

// TestRenumber takes the identification back out of packets of several lengths.
func TestRenumber(t *testing.T) {
	flow := wire.NewFlow(wire.GIDOf(netip.MustParseAddr("192.0.2.1")), wire.GIDOf(netip.MustParseAddr("192.0.2.9")), wire.Port)
	for _, n := range []int{16, 20, 1040, 4116} {
		for _, id := range []uint16{0, 1, 63, 0xFFFF} {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(i * 7)
			}
			want := append([]byte(nil), b...)
			flow.Seal(want, 0)
			flow.Seal(b, id)
			wire.Renumber(b, id)
			require.Equal(t, want, b)
		}
	}
}
