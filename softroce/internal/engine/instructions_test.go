// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64 && !race

package engine

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/instructions"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// counted are requests from posting to polling, over a network that delivers
// packets at once.
func counted(t *testing.T) map[string]func() error {
	l, x, y := newLoop(t, 1<<16)
	run := func(op libibverbs.WrOpcode, size int) func() error {
		s := SendSlot{Opcode: op, Flags: uint32(libibverbs.IBV_SEND_SIGNALED), CompareAdd: 1}.remote(y, 0)
		return func() error {
			if op == send {
				fastRecv(y.qp.recv, 1, y.mr.sge(0, size))
			}
			fast(x.qp.send, &s, x.mr.sge(0, size))
			l.Ring(x.qp.send)
			l.settle()
			take(t, x.send, 1)
			if op == send {
				take(t, y.recv, 1)
			}
			return nil
		}
	}
	merged := func(do func() error) func() error {
		return func() error {
			l.Device.config.Merges = func() bool { return true }
			return do()
		}
	}
	return map[string]func() error{
		"send 64":          run(send, 64),
		"write 64":         run(write, 64),
		"write 64K":        run(write, 1<<16),
		"read 64":          run(read, 64),
		"read 64K":         run(read, 1<<16),
		"fetch and add":    run(fetchAdd, 8),
		"merged write 64K": merged(run(write, 1<<16)),
		"merged read 64K":  merged(run(read, 1<<16)),
	}
}

// TestCounted is what TestInstructions runs.
func TestCounted(t *testing.T) { instructions.Run(t, counted) }

// Each request takes as many instructions as it did.
func TestInstructions(t *testing.T) { instructions.Check(t, counted) }

// For each request or packet, the device copies or clears some of these.
func TestSizes(t *testing.T) {
	for name, tt := range map[string]struct {
		size uintptr
		want int
	}{
		"request":    {unsafe.Sizeof(request{}), 40},
		"answer":     {unsafe.Sizeof(answer{}), 80},
		"message":    {unsafe.Sizeof(message{}), 32},
		"dependency": {unsafe.Sizeof(dependency{}), 48},
		"completion": {unsafe.Sizeof(Completion{}), 96},
		"packet":     {unsafe.Sizeof(wire.Packet{}), 152},
		"send slot":  {SendSlotSize, 88},
		"recv slot":  {RecvSlotSize, 16},
	} {
		require.EqualValues(t, tt.want, tt.size, "bytes of a %s", name)
	}
}
