// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// place writes hexadecimal texts at their offsets behind the MAD's header.
func place(t testing.TB, attribute uint16, fields map[int]string) []byte {
	t.Helper()
	b := make([]byte, wire.MADLen)
	copy(b, unhex(t, fmt.Sprintf("01070203 00000000 a0a1a2a3a4a5a6a7 %04x 0000 b0b1b2b3", attribute)))
	for at, text := range fields {
		field := unhex(t, text)
		require.Equal(t, make([]byte, len(field)), b[24+at:24+at+len(field)], "fields overlap at %d", at)
		copy(b[24+at:], field)
	}
	return b
}

// fill fills private data with bytes that differ, and returns them.
func fill(b []byte) string {
	for i := range b {
		b[i] = byte(i + 1)
	}
	return hex.EncodeToString(b)
}

// Every message with a value of its own in each field, and where these lie. The
// values of fields of less than a byte have all bits set in one message and
// none in the other.
func messages(t testing.TB) []struct {
	name    string
	message wire.Message
	mad     []byte
} {
	header := wire.Header{TID: 0xA0A1A2A3A4A5A6A7, AttrMod: 0xB0B1B2B3}
	var (
		req     = &wire.REQ{Header: header}
		flags   = &wire.REQ{Header: header}
		rep     = &wire.REP{Header: header}
		rtu     = &wire.RTU{Header: header, LocalCommID: 0x01020304, RemoteCommID: 0x05060708}
		rej     = &wire.REJ{Header: header, LocalCommID: 0x01020304, RemoteCommID: 0x05060708, Rejected: wire.AnswersREP}
		mra     = &wire.MRA{Header: header, LocalCommID: 0x01020304, RemoteCommID: 0x05060708, Received: wire.AnswersOther}
		dreq    = &wire.DREQ{Header: header, LocalCommID: 0x01020304, RemoteCommID: 0x05060708, RemoteQPN: 0x090A0B}
		drep    = &wire.DREP{Header: header, LocalCommID: 0x01020304, RemoteCommID: 0x05060708}
		sidrReq = &wire.SIDRReq{Header: header, RequestID: 0x01020304, PKey: 0x0506, ServiceID: 0x08090A0B0C0D0E0F}
		sidrRep = &wire.SIDRRep{Header: header, RequestID: 0x01020304, Status: wire.SIDRRejected, InfoLength: 5}
	)
	req.LocalCommID, req.VendorID, req.ServiceID = 0x01020304, 0x050607, 0x08090A0B0C0D0E0F
	req.LocalCAGUID, req.LocalQKey, req.LocalQPN = 0x1011121314151617, 0x18191A1B, 0x1C1D1E
	req.ResponderResources, req.LocalEECN, req.InitiatorDepth = 0x1F, 0x202122, 0x23
	req.RemoteEECN, req.StartingPSN, req.PKey = 0x242526, 0x272829, 0x2A2B
	req.RemoteResponseTimeout, req.Transport, req.FlowControl = 31, 0, true
	req.LocalResponseTimeout, req.RetryCount = 0, 7
	req.PathMTU, req.RDC, req.RNRRetryCount = 15, false, 7
	req.MaxCMRetries, req.SRQ, req.ExtendedTransport = 0, true, 0
	req.Primary = wire.Path{
		LocalLID: 0x3031, RemoteLID: 0x3233, FlowLabel: 0xF3435, Rate: 0x36, TrafficClass: 0x37, HopLimit: 0x38,
		SL: 15, AckTimeout: 31,
	}
	req.Alternate = wire.Path{
		LocalLID: 0x4041, RemoteLID: 0x4243, FlowLabel: 0x04445, Rate: 0x06, TrafficClass: 0x47, HopLimit: 0x48,
		SubnetLocal: true,
	}
	fill(req.Primary.LocalGID[:])
	fill(req.Primary.RemoteGID[8:])
	fill(req.Alternate.LocalGID[4:])
	fill(req.Alternate.RemoteGID[12:])

	flags.Transport, flags.LocalResponseTimeout, flags.RDC = 3, 31, true
	flags.MaxCMRetries, flags.ExtendedTransport = 15, 7

	rep.LocalCommID, rep.RemoteCommID, rep.LocalQKey, rep.LocalQPN = 0x01020304, 0x05060708, 0x090A0B0C, 0x0D0E0F
	rep.VendorID, rep.LocalEECN, rep.StartingPSN = 0x101112, 0x131415, 0x161718
	rep.ResponderResources, rep.InitiatorDepth, rep.TargetAckDelay, rep.FailoverAccepted = 0x19, 0x1A, 31, 1
	rep.RNRRetryCount, rep.SRQ, rep.LocalCAGUID = 5, true, 0x1B1C1D1E1F202122

	rej.InfoLength, rej.Reason = 72, wire.RejectConsumer
	mra.ServiceTimeout = 24
	sidrRep.VendorID, sidrRep.QPN, sidrRep.ServiceID, sidrRep.QKey = 0x060708, 0x090A0B, 0x0C0D0E0F10111213, 0x14151617

	return []struct {
		name    string
		message wire.Message
		mad     []byte
	}{
		{"REQ", req, place(t, 0x10, map[int]string{
			0: "01020304", 5: "050607", 8: "08090a0b0c0d0e0f", 16: "1011121314151617", 28: "18191a1b", 32: "1c1d1e", 35: "1f",
			36: "202122", 39: "23", 40: "242526", 43: "f9", 44: "272829", 47: "07", 48: "2a2b", 50: "f7", 51: "08",
			52: "3031", 54: "3233", 56: "0102030405060708090a0b0c0d0e0f10", 72: "0000000000000000 0102030405060708",
			88: "f34350", 91: "36", 92: "37", 93: "38", 94: "f0", 95: "f8",
			96: "4041", 98: "4243", 100: "00000000 0102030405060708090a0b0c", 116: "000000000000000000000000 01020304",
			132: "044450", 135: "06", 136: "47", 137: "48", 138: "08", 139: "00", 140: fill(req.PrivateData[:]),
		})},
		{"REQ with other flags", flags, place(t, 0x10, map[int]string{43: "06", 47: "f8", 50: "08", 51: "f7"})},
		{"REP", rep, place(t, 0x13, map[int]string{
			0: "01020304", 4: "05060708", 8: "090a0b0c", 12: "0d0e0f", 15: "10", 16: "131415", 19: "11", 20: "161718", 23: "12",
			24: "19", 25: "1a", 26: "fa", 27: "b0", 28: "1b1c1d1e1f202122", 36: fill(rep.PrivateData[:]),
		})},
		{"REP with other flags", &wire.REP{Header: header, FailoverAccepted: 2, FlowControl: true}, place(t, 0x13, map[int]string{26: "05"})},
		{"RTU", rtu, place(t, 0x14, map[int]string{0: "01020304", 4: "05060708", 8: fill(rtu.PrivateData[:])})},
		{"REJ", rej, place(t, 0x12, map[int]string{
			0: "01020304", 4: "05060708", 8: "40", 9: "90", 10: "001c", 12: fill(rej.Info[:]), 84: fill(rej.PrivateData[:]),
		})},
		{"MRA", mra, place(t, 0x11, map[int]string{
			0: "01020304", 4: "05060708", 8: "80", 9: "c0", 10: fill(mra.PrivateData[:]),
		})},
		{"DREQ", dreq, place(t, 0x15, map[int]string{0: "01020304", 4: "05060708", 8: "090a0b", 12: fill(dreq.PrivateData[:])})},
		{"DREP", drep, place(t, 0x16, map[int]string{0: "01020304", 4: "05060708", 8: fill(drep.PrivateData[:])})},
		{"SIDR_REQ", sidrReq, place(t, 0x17, map[int]string{
			0: "01020304", 4: "0506", 8: "08090a0b0c0d0e0f", 16: fill(sidrReq.PrivateData[:]),
		})},
		{"SIDR_REP", sidrRep, place(t, 0x18, map[int]string{
			0: "01020304", 4: "02", 5: "05", 6: "0607", 8: "090a0b", 11: "08", 12: "0c0d0e0f10111213", 20: "14151617",
			24: fill(sidrRep.Info[:]), 96: fill(sidrRep.PrivateData[:]),
		})},
	}
}

func TestMAD(t *testing.T) {
	for _, c := range messages(t) {
		t.Run(c.name, func(t *testing.T) {
			b := wire.MAD(c.message)
			require.Equal(t, c.mad, b[:])
			got, err := wire.ParseMAD(c.mad)
			require.NoError(t, err)
			require.Equal(t, c.message, got)
			require.Contains(t, c.name, got.Attribute().String())
			require.Equal(t, uint64(0xA0A1A2A3A4A5A6A7), got.Head().TID)
		})
	}
	require.Equal(t, "attribute 0x19", wire.Attribute(0x19).String())
}

// Values that are too large do not run into their neighbours.
func TestMADCutsNumbers(t *testing.T) {
	b := wire.MAD(&wire.REQ{Transport: 0xFF, StartingPSN: 0xFF000001, Primary: wire.Path{FlowLabel: 0xFFF00001}})
	got, err := wire.ParseMAD(b[:])
	require.NoError(t, err)
	require.Equal(t, &wire.REQ{Transport: 3, StartingPSN: 1, Primary: wire.Path{FlowLabel: 1}}, got)
}

// What Linux 6.1 sends for rping.
const rpingREQ = `01070203 00000000 000000024f5cdcf6 0010 0000 00000000
	f6dc5c4f 00000000 0000000001061c06 c46b32fffe30fd89 00000000 00000000
	000011 01 000000 01 000000 a0 c28e7d a7 ffff 37 f0 ffff ffff
	00000000000000000000ffffc0000201 00000000000000000000ffffc0000209 9c76b000 00 40 00 98
	0000000000000000 0000000000000000000000000000000000000000 0000000000000000 0000000000000000
	00 40 d3fb 000000000000000000000000c0000201 000000000000000000000000c0000209`

func TestRpingREQ(t *testing.T) {
	b := make([]byte, wire.MADLen)
	copy(b, unhex(t, rpingREQ))
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	ip := wire.IPHeader{Src: src, Dst: dst, SrcPort: 54267}
	want := &wire.REQ{
		Header:                wire.Header{TID: 0x24F5CDCF6},
		LocalCommID:           0xF6DC5C4F,
		ServiceID:             wire.ServiceID(0x0106, 7174),
		LocalCAGUID:           0xC46B32FFFE30FD89,
		LocalQPN:              17,
		ResponderResources:    1,
		InitiatorDepth:        1,
		RemoteResponseTimeout: 20,
		StartingPSN:           0xC28E7D,
		LocalResponseTimeout:  20,
		RetryCount:            7,
		PKey:                  wire.DefaultPKey,
		PathMTU:               3,
		RNRRetryCount:         7,
		MaxCMRetries:          15,
		Primary: wire.Path{
			LocalLID: 0xFFFF, RemoteLID: 0xFFFF, LocalGID: wire.GIDOf(src), RemoteGID: wire.GIDOf(dst),
			FlowLabel: 0x9C76B, HopLimit: 64, AckTimeout: 19,
		},
	}
	ip.Put((*[wire.IPHeaderLen]byte)(want.PrivateData[:]))

	m, err := wire.ParseMAD(b)
	require.NoError(t, err)
	require.Equal(t, want, m)
	got := wire.MAD(want)
	require.Equal(t, b, got[:])
	header, err := wire.ParseIPHeader(want.PrivateData[:])
	require.NoError(t, err)
	require.Equal(t, ip, header)
}

func TestParseMADErrors(t *testing.T) {
	for _, c := range []struct {
		at      int
		value   byte
		message string
	}{
		{0, 2, "MAD has base version 2, not 1"},
		{1, 4, "MAD has class 4, not 7"},
		{2, 1, "MAD has class version 1, not 2"},
		{3, 0x81, "MAD has method 129, not 3"},
		{17, 0x19, "MAD has the unknown attribute 0x19"},
		{16, 0x01, "MAD has the unknown attribute 0x110"},
	} {
		b := wire.MAD(&wire.REQ{})
		b[c.at] = c.value
		_, err := wire.ParseMAD(b[:])
		require.EqualError(t, err, c.message)
	}
	for _, size := range []int{0, 24, 255, 257} {
		_, err := wire.ParseMAD(make([]byte, size))
		require.EqualError(t, err, fmt.Sprintf("MAD has %d bytes, not 256", size))
	}
}

func TestIPHeader(t *testing.T) {
	for _, c := range []struct {
		src, dst string
		want     string
	}{
		{
			"192.0.2.1", "192.0.2.9",
			"00 40 d3fb 000000000000000000000000c0000201 000000000000000000000000c0000209",
		},
		{
			"2001:db8::1", "2001:db8::9",
			"00 60 d3fb 20010db8000000000000000000000001 20010db8000000000000000000000009",
		},
		{
			"::1", "::ffff:192.0.2.9",
			"00 60 d3fb 00000000000000000000000000000001 00000000000000000000ffffc0000209",
		},
	} {
		h := wire.IPHeader{Src: netip.MustParseAddr(c.src), Dst: netip.MustParseAddr(c.dst), SrcPort: 0xD3FB}
		b := [wire.IPHeaderLen]byte{0: 0xFF, 4: 0xFF, 35: 0xFF}
		h.Put(&b)
		require.Equal(t, unhex(t, c.want), b[:])
		got, err := wire.ParseIPHeader(append(b[:], "the program's data"...))
		require.NoError(t, err)
		require.Equal(t, h, got)
	}

	for _, c := range []struct {
		b       []byte
		message string
	}{
		{nil, "IP header in private data has 0 bytes, fewer than 36"},
		{make([]byte, 35), "IP header in private data has 35 bytes, fewer than 36"},
		{append([]byte{1, 0x40}, make([]byte, 34)...), "IP header in private data has version 1, not 0"},
		{append([]byte{0, 0x50}, make([]byte, 34)...), "IP header in private data has IP version 5, neither 4 nor 6"},
	} {
		_, err := wire.ParseIPHeader(c.b)
		require.EqualError(t, err, c.message)
	}
}

func TestServiceID(t *testing.T) {
	require.Equal(t, uint64(0x01061C06), wire.ServiceID(0x0106, 7174))
	space, port, ok := wire.ServicePort(0x01061C06)
	require.True(t, ok)
	require.Equal(t, uint16(0x0106), space)
	require.Equal(t, uint16(7174), port)
	_, _, ok = wire.ServicePort(0x1_01061C06)
	require.False(t, ok)
}

func FuzzParseMAD(f *testing.F) {
	for _, c := range messages(f) {
		f.Add(c.mad)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wire.ParseMAD(b)
		if err != nil {
			require.Nil(t, m)
			return
		}
		again := wire.MAD(m)
		got, err := wire.ParseMAD(again[:])
		require.NoError(t, err)
		require.Equal(t, m, got)
		// Nothing but reserved bits may be lost, and those become 0.
		for i := range b {
			require.Zero(t, again[i]&^b[i], "byte %d", i)
		}
	})
}

func FuzzIPHeader(f *testing.F) {
	f.Add(unhex(f, "00 40 d3fb 000000000000000000000000c0000201 000000000000000000000000c0000209"))
	f.Add(unhex(f, "00 60 d3fb 20010db8000000000000000000000001 20010db8000000000000000000000009"))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := wire.ParseIPHeader(b)
		if err != nil {
			return
		}
		var again [wire.IPHeaderLen]byte
		h.Put(&again)
		got, err := wire.ParseIPHeader(again[:])
		require.NoError(t, err)
		require.Equal(t, h.Src.Unmap(), got.Src.Unmap())
		require.Equal(t, h.Dst.Unmap(), got.Dst.Unmap())
		require.Equal(t, h.SrcPort, got.SrcPort)
	})
}

func BenchmarkMAD(b *testing.B) {
	m := &wire.REQ{}
	for b.Loop() {
		_ = wire.MAD(m)
	}
}

func BenchmarkParseMAD(b *testing.B) {
	mad := wire.MAD(&wire.REQ{})
	for b.Loop() {
		if _, err := wire.ParseMAD(mad[:]); err != nil {
			b.Fatal(err)
		}
	}
}
