// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// Messages have the layout that Valkey's documentation gives.
func TestMessages(t *testing.T) {
	for in, want := range map[string]struct {
		message message
		refused string
	}{
		strings.Repeat("00", 32):                        {message: message{opcode: getServerFeature}},
		strings.Repeat("00", 24) + "0000000000000102":   {message: message{opcode: getServerFeature, features: 0x102}},
		"0002" + strings.Repeat("00", 30):               {message: message{opcode: keepalive}},
		"0003" + strings.Repeat("00", 14) + window:      {message: message{opcode: registerXferMemory, window: ibverbs.RemoteBuffer{Addr: 0x1122334455667788, Len: 0x100000, RKey: 0xabcdef}}},
		"0003" + strings.Repeat("00", 30):               {refused: "a window of 0 bytes at address 0x0"},
		"0003" + strings.Repeat("00", 14) + overflowing: {refused: "a window of 2 bytes at address 0xffffffffffffffff"},
		"0001" + strings.Repeat("00", 30):               {message: message{opcode: setClientFeature}, refused: "opcode 1, which servers do not send"},
		"0004" + strings.Repeat("00", 30):               {refused: "opcode 4, which servers do not send"},
		"ffff" + strings.Repeat("00", 30):               {refused: "opcode 65535, which servers do not send"},
		"":                                              {refused: "a control message of 0 bytes instead of 32"},
		strings.Repeat("00", 31):                        {refused: "a control message of 31 bytes instead of 32"},
	} {
		t.Run(in, func(t *testing.T) {
			b, err := hex.DecodeString(in)
			require.NoError(t, err)
			m, err := parse(b)
			if want.refused != "" {
				require.ErrorContains(t, err, want.refused)
			} else {
				require.NoError(t, err)
				require.Equal(t, want.message, m)
			}
			if want.refused == "" || want.message.opcode != 0 {
				again := make([]byte, messageSize)
				want.message.encode(again)
				require.Equal(t, in, hex.EncodeToString(again))
			}
		})
	}
}

const (
	window      = "1122334455667788" + "00100000" + "00abcdef"
	overflowing = "ffffffffffffffff" + "00000002" + "00000000"
)

func FuzzParse(f *testing.F) {
	for _, text := range []string{strings.Repeat("00", 32), "0003" + strings.Repeat("00", 14) + window, "0003" + strings.Repeat("00", 14) + overflowing} {
		b, err := hex.DecodeString(text)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parse(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, m.window.Addr, math.MaxUint64-m.window.Len)
		again := make([]byte, messageSize)
		m.encode(again)
		same, err := parse(again)
		require.NoError(t, err)
		require.Equal(t, m, same)
	})
}
