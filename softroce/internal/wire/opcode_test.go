// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// The specification's table: what the low five bits of an opcode mean, and of
// which transports it is.
var operations = []struct {
	low        uint8
	name       string
	position   string // of the packet in its message
	kind       string
	headers    []string
	transports []wire.Transport
}{
	{0x00, "SEND first", "first", "send", nil, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x01, "SEND middle", "middle", "send", nil, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x02, "SEND last", "last", "send", nil, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x03, "SEND last with immediate", "last", "send", []string{"ImmDt"}, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x04, "SEND only", "only", "send", nil, []wire.Transport{wire.RC, wire.UC, wire.UD, wire.XRC}},
	{0x05, "SEND only with immediate", "only", "send", []string{"ImmDt"}, []wire.Transport{wire.RC, wire.UC, wire.UD, wire.XRC}},
	{0x06, "WRITE first", "first", "write", []string{"RETH"}, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x07, "WRITE middle", "middle", "write", nil, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x08, "WRITE last", "last", "write", nil, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x09, "WRITE last with immediate", "last", "write", []string{"ImmDt"}, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x0A, "WRITE only", "only", "write", []string{"RETH"}, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x0B, "WRITE only with immediate", "only", "write", []string{"RETH", "ImmDt"}, []wire.Transport{wire.RC, wire.UC, wire.XRC}},
	{0x0C, "READ request", "only", "read", []string{"RETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x0D, "READ response first", "first", "read response", []string{"AETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x0E, "READ response middle", "middle", "read response", nil, []wire.Transport{wire.RC, wire.XRC}},
	{0x0F, "READ response last", "last", "read response", []string{"AETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x10, "READ response only", "only", "read response", []string{"AETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x11, "ACK", "only", "ack", []string{"AETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x12, "atomic ACK", "only", "ack", []string{"AETH", "AtomicAckETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x13, "compare and swap", "only", "atomic", []string{"AtomicETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x14, "fetch and add", "only", "atomic", []string{"AtomicETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x16, "SEND last with invalidate", "last", "send", []string{"IETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x17, "SEND only with invalidate", "only", "send", []string{"IETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x1C, "FLUSH", "only", "flush", []string{"FETH", "RETH"}, []wire.Transport{wire.RC, wire.XRC}},
	{0x1D, "ATOMIC WRITE", "only", "atomic write", []string{"RETH"}, []wire.Transport{wire.RC, wire.XRC}},
}

var transportNames = map[wire.Transport]string{wire.RC: "RC", wire.UC: "UC", wire.UD: "UD", wire.XRC: "XRC"}

func TestOpcodes(t *testing.T) {
	headerLens := map[string]int{
		"DETH": 8, "FETH": 4, "RETH": 16, "AtomicETH": 28, "AETH": 4, "AtomicAckETH": 8, "ImmDt": 4, "IETH": 4, "XRCETH": 4,
	}
	valid := map[wire.Opcode]bool{wire.CNP: true}
	for _, want := range operations {
		for _, transport := range want.transports {
			o := wire.Opcode(uint8(transport)<<5 | want.low)
			valid[o] = true
			name := transportNames[transport] + " " + want.name
			headers := want.headers
			if transport == wire.UD {
				headers = append([]string{"DETH"}, headers...)
			}
			response := want.kind == "read response" || want.kind == "ack"
			if transport == wire.XRC && !response {
				headers = append([]string{"XRCETH"}, headers...)
			}

			require.Equal(t, name, o.String())
			require.Equal(t, transport, o.Transport(), name)
			require.Equal(t, wire.Opcode(want.low), o.Operation(), name)
			require.Equal(t, o, o.Operation().Of(transport), name)
			require.Equal(t, transport == wire.RC || transport == wire.XRC, o.Transport().Reliable(), name)
			require.Equal(t, want.position == "first" || want.position == "only", o.Begins(), name)
			require.Equal(t, want.position == "last" || want.position == "only", o.Ends(), name)
			require.Equal(t, want.position == "first", o.IsFirst(), name)
			require.Equal(t, want.position == "middle", o.IsMiddle(), name)
			require.Equal(t, want.position == "last", o.IsLast(), name)
			require.Equal(t, want.position == "only", o.IsOnly(), name)
			require.Equal(t, want.kind == "send", o.IsSend(), name)
			require.Equal(t, want.kind == "write", o.IsWrite(), name)
			require.Equal(t, want.kind == "atomic", o.IsAtomic(), name)
			require.Equal(t, want.kind == "read response", o.IsReadResponse(), name)
			require.Equal(t, response, o.IsResponse(), name)
			require.Equal(t, !response, o.IsRequest(), name)
			require.Equal(t, want.kind == "send" || want.kind == "write" || want.kind == "atomic write" || want.kind == "read response", o.HasPayload(), name)

			size := 12
			for _, h := range headers {
				size += headerLens[h]
			}
			require.Equal(t, size, o.HeaderLen(), name)
			for h, has := range map[string]bool{
				"DETH": o.HasDETH(), "FETH": o.HasFETH(), "RETH": o.HasRETH(), "AtomicETH": o.HasAtomicETH(), "AETH": o.HasAETH(),
				"AtomicAckETH": o.HasAtomicAckETH(), "ImmDt": o.HasImm(), "IETH": o.HasInv(), "XRCETH": o.HasXRCETH(),
			} {
				require.Equalf(t, slices.Contains(headers, h), has, "%s: %s", name, h)
			}
		}
	}

	require.Len(t, valid, 65)
	for o := range 256 {
		require.Equal(t, valid[wire.Opcode(o)], wire.Opcode(o).Valid(), "%#x", o)
	}
	require.Equal(t, "opcode 0x1b", wire.Opcode(0x1B).String())
	require.False(t, wire.Opcode(0x1B).IsRequest())
	require.Equal(t, wire.Congestion, wire.CNP.Transport())
	require.Equal(t, 28, wire.CNP.HeaderLen())
	require.False(t, wire.CNP.IsRequest())
	require.False(t, wire.CNP.IsResponse())
}

// The names of the constants: their order in the specification's table.
func TestOpcodeConstants(t *testing.T) {
	rc := []wire.Opcode{
		wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendLastImm, wire.RCSendOnly, wire.RCSendOnlyImm,
		wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteLastImm, wire.RCWriteOnly, wire.RCWriteOnlyImm,
		wire.RCReadRequest, wire.RCReadFirst, wire.RCReadMiddle, wire.RCReadLast, wire.RCReadOnly,
		wire.RCAck, wire.RCAtomicAck, wire.RCCompareSwap, wire.RCFetchAdd, wire.RCSendLastInv, wire.RCSendOnlyInv,
		wire.RCFlush, wire.RCAtomicWrite,
	}
	uc := []wire.Opcode{
		wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast, wire.UCSendLastImm, wire.UCSendOnly, wire.UCSendOnlyImm,
		wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLast, wire.UCWriteLastImm, wire.UCWriteOnly, wire.UCWriteOnlyImm,
	}
	xrc := []wire.Opcode{
		wire.XRCSendFirst, wire.XRCSendMiddle, wire.XRCSendLast, wire.XRCSendLastImm, wire.XRCSendOnly, wire.XRCSendOnlyImm,
		wire.XRCWriteFirst, wire.XRCWriteMiddle, wire.XRCWriteLast, wire.XRCWriteLastImm, wire.XRCWriteOnly, wire.XRCWriteOnlyImm,
		wire.XRCReadRequest, wire.XRCReadFirst, wire.XRCReadMiddle, wire.XRCReadLast, wire.XRCReadOnly,
		wire.XRCAck, wire.XRCAtomicAck, wire.XRCCompareSwap, wire.XRCFetchAdd, wire.XRCSendLastInv, wire.XRCSendOnlyInv,
		wire.XRCFlush, wire.XRCAtomicWrite,
	}
	require.Len(t, rc, len(operations))
	require.Len(t, xrc, len(operations))
	for i, want := range operations {
		require.Equal(t, "RC "+want.name, rc[i].String())
		require.Equal(t, "XRC "+want.name, xrc[i].String())
		if i < len(uc) {
			require.Equal(t, "UC "+want.name, uc[i].String())
		}
	}
	require.Equal(t, "UD SEND only", wire.UDSendOnly.String())
	require.Equal(t, "UD SEND only with immediate", wire.UDSendOnlyImm.String())
}
