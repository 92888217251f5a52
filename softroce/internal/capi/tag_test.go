// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// tagQueue makes a shared receive queue with a tag list, and its completion
// queue, whose completions have tags.
func (r *rig) tagQueue(ops uint32) (*libibverbs.Srq, *libibverbs.Cq) {
	r.t.Helper()
	x := alloc[libibverbs.CqInitAttrEx]()
	defer free(x)
	x.Cqe, x.WcFlags = 64, uint64(libibverbs.IBV_WC_EX_WITH_TM_INFO)
	ex, err := libibverbs.CreateCqEx(r.c, x)
	require.NoError(r.t, err)
	cq := (*libibverbs.Cq)(unsafe.Pointer(ex))
	a := alloc[libibverbs.SrqInitAttrEx]()
	defer free(a)
	*a = libibverbs.SrqInitAttrEx{
		Attr: libibverbs.SrqAttr{MaxWr: 4, MaxSge: 1}, SrqType: libibverbs.IBV_SRQT_TM, Pd: r.pd, Cq: cq,
		CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD | libibverbs.IBV_SRQ_INIT_ATTR_CQ | libibverbs.IBV_SRQ_INIT_ATTR_TM,
		TmCap:    libibverbs.TmCap{MaxNumTags: 4, MaxOps: ops},
	}
	srq, err := libibverbs.CreateSrqEx(r.c, a)
	require.NoError(r.t, err)
	return srq, cq
}

// A list of operations is executed up to the first that is wrong.
func TestPostSrqOps(t *testing.T) {
	r := newRig(t)
	srq, cq := r.tagQueue(4)
	ops := make([]*libibverbs.OpsWr, 3)
	for i := range ops {
		ops[i] = alloc[libibverbs.OpsWr]()
		defer free(ops[i])
	}
	for name, tt := range map[string]struct {
		srq    *libibverbs.Srq
		change func(op *libibverbs.OpsWr)
		want   error
	}{
		"no segments":       {srq, func(op *libibverbs.OpsWr) { op.Tm.Add.NumSge = 1 }, syscall.EINVAL},
		"negative segments": {srq, func(op *libibverbs.OpsWr) { op.Tm.Add.NumSge, op.Tm.Add.SgList = -1, r.sge }, syscall.EINVAL},
		"unknown operation": {srq, func(op *libibverbs.OpsWr) { op.Opcode = 3 }, syscall.EINVAL},
		"no handle":         {srq, func(op *libibverbs.OpsWr) { op.Opcode = libibverbs.IBV_WR_TAG_DEL }, syscall.ENOENT},
	} {
		for i, op := range ops {
			*op = libibverbs.OpsWr{WrId: uint64(i), Opcode: libibverbs.IBV_WR_TAG_SYNC, Flags: libibverbs.IBV_OPS_SIGNALED}
			if i > 0 {
				ops[i-1].Next = op
			}
		}
		ops[1].Opcode = libibverbs.IBV_WR_TAG_ADD
		tt.change(ops[1])
		var bad *libibverbs.OpsWr
		require.ErrorIs(t, libibverbs.PostSrqOps(tt.srq, ops[0], &bad), tt.want, name)
		require.Same(t, ops[1], bad, name)
		wcs := r.poll(cq, 1)
		require.Equal(t, libibverbs.IBV_WC_TM_SYNC, wcs[0].Opcode, name)
	}
}

// Only operations that add a receive have segments. Others ignore what is in
// their place.
func TestPostSrqOpsWithoutSegments(t *testing.T) {
	r := newRig(t)
	srq, cq := r.tagQueue(4)
	add, op := alloc[libibverbs.OpsWr](), alloc[libibverbs.OpsWr]()
	defer free(add)
	defer free(op)
	var bad *libibverbs.OpsWr
	for _, tt := range []struct {
		opcode libibverbs.OpsWrOpcode
		want   libibverbs.WcOpcode
	}{
		{libibverbs.IBV_WR_TAG_DEL, libibverbs.IBV_WC_TM_DEL},
		{libibverbs.IBV_WR_TAG_SYNC, libibverbs.IBV_WC_TM_SYNC},
	} {
		for _, segments := range []int32{-1, 1, math.MaxInt32, math.MinInt32} {
			*add = libibverbs.OpsWr{Opcode: libibverbs.IBV_WR_TAG_ADD}
			require.NoError(t, libibverbs.PostSrqOps(srq, add, &bad))
			*op = libibverbs.OpsWr{Opcode: tt.opcode, Flags: libibverbs.IBV_OPS_SIGNALED}
			op.Tm.Handle = add.Tm.Handle
			op.Tm.Add.NumSge = segments
			require.NoError(t, libibverbs.PostSrqOps(srq, op, &bad), "%v, %d segments", tt.opcode, segments)
			wc := r.poll(cq, 1)[0]
			require.Equal(t, [...]uint32{uint32(tt.want), uint32(libibverbs.IBV_WC_SUCCESS)}, [...]uint32{uint32(wc.Opcode), uint32(wc.Status)})
			*op = libibverbs.OpsWr{Opcode: libibverbs.IBV_WR_TAG_DEL}
			op.Tm.Handle = add.Tm.Handle
			require.NoError(t, libibverbs.PostSrqOps(srq, op, &bad))
		}
	}
}

// The queue is destroyed while a thread polls its completion queue, in which
// completions of operations are left.
func TestDestroyTagQueueWhilePolling(t *testing.T) {
	r := newRig(t)
	op := alloc[libibverbs.OpsWr]()
	defer free(op)
	for range 50 {
		srq, cq := r.tagQueue(8)
		var polling sync.WaitGroup
		stop := make(chan struct{})
		polling.Go(func() {
			wc := alloc[libibverbs.Wc]()
			defer free(wc)
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = libibverbs.PollCq(cq, 1, wc)
				}
			}
		})
		*op = libibverbs.OpsWr{Opcode: libibverbs.IBV_WR_TAG_SYNC, Flags: libibverbs.IBV_OPS_SIGNALED}
		var bad *libibverbs.OpsWr
		for range 8 {
			require.NoError(t, libibverbs.PostSrqOps(srq, op, &bad))
		}
		require.ErrorIs(t, libibverbs.DestroyCq(cq), syscall.EBUSY)
		require.NoError(t, libibverbs.DestroySrq(srq))
		close(stop)
		polling.Wait()
		require.NoError(t, libibverbs.DestroyCq(cq))
	}
}
