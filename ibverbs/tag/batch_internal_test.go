// SPDX-License-Identifier: Apache-2.0

package tag

import (
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// C reads the list as it lies.
func TestBatchList(t *testing.T) {
	memory := ibverbs.RawSegment(0x1000, 100, 5)
	srq := &ibverbs.SRQ{}
	b, err := NewBatch(3, 2)
	require.NoError(t, err)
	require.Zero(t, b.Len())
	for range 2 { // the second time over the remains of the first
		b.Reset()
		recv := Recv{Tag: 0x1122334455667788, Mask: math.MaxUint64, ID: 9}
		require.NoError(t, b.Add(Op{ID: 1, Flags: OpSignaled}, recv, memory.Sub(0, 10), memory.Sub(20, 30)))
		require.NoError(t, b.Delete(Op{ID: 2, Flags: OpSignaled | OpSync, Unexpected: 7}, Handle{srq, 0x55}))
		require.NoError(t, b.Sync(Op{ID: 3, Unexpected: 1 << 31}))
		require.ErrorIs(t, b.Sync(Op{}), ibverbs.ErrBatchFull)
		require.Equal(t, 3, b.Len())

		wrs := b.ops[:b.n]
		require.Equal(t, []libibverbs.Sge{
			{Addr: 0x1000, Length: 10, Lkey: 5}, {Addr: 0x1014, Length: 30, Lkey: 5},
		}, unsafe.Slice(wrs[0].Tm.Add.SgList, wrs[0].Tm.Add.NumSge))
		require.Equal(t, []libibverbs.OpsWr{
			{
				WrId: 1, Next: &wrs[1], Opcode: libibverbs.IBV_WR_TAG_ADD, Flags: 1,
				Tm: libibverbs.OpsWrTm{Add: libibverbs.OpsWrTmAdd{
					RecvWrId: 9, SgList: wrs[0].Tm.Add.SgList, NumSge: 2, Tag: 0x1122334455667788, Mask: math.MaxUint64,
				}},
			},
			{
				WrId: 2, Next: &wrs[2], Opcode: libibverbs.IBV_WR_TAG_DEL, Flags: 3,
				Tm: libibverbs.OpsWrTm{UnexpectedCnt: 7, Handle: 0x55},
			},
			{
				WrId: 3, Opcode: libibverbs.IBV_WR_TAG_SYNC, Flags: 2,
				Tm: libibverbs.OpsWrTm{UnexpectedCnt: 1 << 31},
			},
		}, wrs)
		require.Equal(t, []*ibverbs.SRQ{nil, srq, nil}, b.deletes)
		for i := -1; i < 4; i++ {
			_, err := b.Handle(i)
			require.ErrorIs(t, err, syscall.EINVAL, "nothing is posted")
		}
	}
}

func TestAddAllocatesNothing(t *testing.T) {
	memory := ibverbs.RawSegment(0x1000, 100, 5)
	b, err := NewBatch(1, 2)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b.Reset()
		if b.Add(Op{}, Recv{}, memory.Sub(0, 10), memory.Sub(20, 30)) != nil {
			panic("refused")
		}
	}))
}

func TestBatchRefuses(t *testing.T) {
	memory := ibverbs.RawSegment(0x1000, 100, 5)
	b, err := NewBatch(2, 1)
	require.NoError(t, err)
	for name, err := range map[string]error{
		"tag 0x11 has bits that its mask 0x1 lacks":                  b.Add(Op{}, Recv{Tag: 0x11, Mask: 1}),
		"the operation has 2 segments, but the batch was made for 1": b.Add(Op{}, Recv{}, memory.Sub(0, 1), memory.Sub(1, 1)),
		"segment 0: segment of 2 bytes at 99 is outside":             b.Add(Op{}, Recv{}, memory.Sub(99, 2)),
		"segment 0: segment without a memory region":                 b.Add(Op{}, Recv{}, ibverbs.Segment{}),
		"the handle is the zero Handle; use one from Batch.Handle":   b.Delete(Op{}, Handle{}),
		"operation 0 of 0 in the batch has not added a receive":      second(b.Handle(0)),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, name)
	}
	require.Zero(t, b.Len())
	for _, b := range []*Batch{nil, {}} {
		b.Reset()
		require.Zero(t, b.Len())
		require.ErrorIs(t, b.Add(Op{}, Recv{}), syscall.EINVAL)
		require.ErrorIs(t, b.Delete(Op{}, Handle{srq: &ibverbs.SRQ{}}), syscall.EINVAL)
		require.ErrorIs(t, b.Sync(Op{}), syscall.EINVAL)
		require.ErrorIs(t, second(b.Handle(0)), syscall.EINVAL)
	}
	for _, sizes := range [][2]int{{0, 1}, {-1, 1}, {1, -1}, {1<<20 + 1, 1}} {
		_, err := NewBatch(sizes[0], sizes[1])
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// second returns the error of a call that returns a value too.
func second[T any](_ T, err error) error { return err }
