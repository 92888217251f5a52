// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

var quoteSrc, quoteDst = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2")

// A quote has what its packet says, as far as it goes.
func TestParseQuote(t *testing.T) {
	data := MAD(&DREQ{LocalCommID: 5, RemoteCommID: 6})
	mad := &Packet{Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: GSI, SrcQP: GSI, QKey: GSIQKey, PSN: 3, Payload: [][]byte{data[:]}}
	send := &Packet{Opcode: RCSendOnly, PKey: DefaultPKey, DestQP: 0x123456, PSN: 0xFEDCBA, Payload: [][]byte{make([]byte, 900)}}
	for name, tt := range map[string]struct {
		packet  *Packet
		length  int
		payload int
	}{
		"message":         {mad, bthLen + 8 + MADLen, 1},
		"part of message": {mad, bthLen + 8 + MADLen - 1, 0},
		"packet":          {send, 500, 0},
		"header":          {send, bthLen, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var p Packet
			require.NoError(t, p.ParseQuote(tt.packet.Append(nil)[:tt.length], quoteSrc, quoteDst))
			require.Equal(t, []any{GIDOf(quoteSrc), GIDOf(quoteDst)}, []any{p.SGID, p.DGID})
			require.Equal(t, []any{tt.packet.Opcode, tt.packet.DestQP, tt.packet.PSN}, []any{p.Opcode, p.DestQP, p.PSN})
			require.Len(t, p.Payload, tt.payload)
			if tt.payload == 1 {
				require.Equal(t, data[:], p.Payload[0])
				require.Equal(t, uint32(GSI), p.SrcQP)
			}
		})
	}
	var p Packet
	require.Error(t, p.ParseQuote(send.Append(nil)[:bthLen-1], quoteSrc, quoteDst))
	require.Error(t, p.ParseQuote(append([]byte{0xFF}, make([]byte, 100)...), quoteSrc, quoteDst))
}

func FuzzParseQuote(f *testing.F) {
	f.Add((&Packet{Opcode: RCSendOnly, Payload: [][]byte{{1, 2, 3, 4}}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p Packet
		if p.ParseQuote(b, quoteSrc, quoteDst) == nil {
			require.True(t, p.Opcode.Valid())
			require.Less(t, len(p.Payload), 2)
		}
	})
}
