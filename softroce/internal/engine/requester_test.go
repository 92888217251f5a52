// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// The packets of each message have the opcodes that the specification names for
// their position in it.
func TestOpcodesOfMessages(t *testing.T) {
	type transport struct {
		name string
		kind libibverbs.QpType
	}
	rc, uc := transport{"RC", libibverbs.IBV_QPT_RC}, transport{"UC", libibverbs.IBV_QPT_UC}
	xrc := transport{"XRC", libibverbs.IBV_QPT_XRC_SEND}
	for op, tt := range map[libibverbs.WrOpcode]struct {
		name, suffix string // of the last packet's opcode
		transports   []transport
	}{
		libibverbs.IBV_WR_SEND:                {"SEND", "", []transport{rc, uc, xrc}},
		libibverbs.IBV_WR_SEND_WITH_IMM:       {"SEND", " with immediate", []transport{rc, uc, xrc}},
		libibverbs.IBV_WR_SEND_WITH_INV:       {"SEND", " with invalidate", []transport{rc, xrc}},
		libibverbs.IBV_WR_RDMA_WRITE:          {"WRITE", "", []transport{rc, uc, xrc}},
		libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM: {"WRITE", " with immediate", []transport{rc, uc, xrc}},
	} {
		for _, on := range tt.transports {
			name := on.name + " " + tt.name
			opcode := func(packets, i int) string {
				return (&request{opcode: op, packets: packets}).operation(i, i == packets-1).Of(transportOf(on.kind)).String()
			}
			require.Equal(t, name+" only"+tt.suffix, opcode(1, 0))
			require.Equal(t, name+" first", opcode(3, 0))
			require.Equal(t, name+" middle", opcode(3, 1))
			require.Equal(t, name+" last"+tt.suffix, opcode(3, 2))
		}
	}
}
