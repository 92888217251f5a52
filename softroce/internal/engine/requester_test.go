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
	for op, tt := range map[libibverbs.WrOpcode]struct {
		name, suffix string // of the last packet's opcode
		transports   []transport
	}{
		libibverbs.IBV_WR_SEND:                {"SEND", "", []transport{rc, uc}},
		libibverbs.IBV_WR_SEND_WITH_IMM:       {"SEND", " with immediate", []transport{rc, uc}},
		libibverbs.IBV_WR_SEND_WITH_INV:       {"SEND", " with invalidate", []transport{rc}},
		libibverbs.IBV_WR_RDMA_WRITE:          {"WRITE", "", []transport{rc, uc}},
		libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM: {"WRITE", " with immediate", []transport{rc, uc}},
	} {
		for _, on := range tt.transports {
			q := &QP{kind: on.kind}
			name := on.name + " " + tt.name
			require.Equal(t, name+" only"+tt.suffix, q.messageOpcode(op, true, true).String())
			require.Equal(t, name+" first", q.messageOpcode(op, true, false).String())
			require.Equal(t, name+" middle", q.messageOpcode(op, false, false).String())
			require.Equal(t, name+" last"+tt.suffix, q.messageOpcode(op, false, true).String())
		}
	}
}
