// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

const (
	withCPU  = libibverbs.IBV_DMAH_INIT_ATTR_MASK_CPU_ID
	withHint = libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH
	withKind = libibverbs.IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
)

// firstCPU returns a CPU that the thread may run on.
func firstCPU(t *testing.T) uint32 {
	for cpu := range uint32(1 << 16) {
		if mayRunOn(cpu) {
			return cpu
		}
	}
	t.Fatal("the thread may run on no CPU")
	return 0
}

// dmahRegion registers memory with a DMA handle.
func (r *rig) dmahRegion(pd *libibverbs.Pd, h *libibverbs.Dmah, access libibverbs.AccessFlags) (*libibverbs.Mr, error) {
	return libibverbs.RegMrEx(pd, &libibverbs.MrInitAttr{
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_DMAH),
		Addr:     start(r.memory), Length: 4096, Access: access, Dmah: h,
	})
}

func TestAllocDmah(t *testing.T) {
	r := newRig(t)
	cpu := firstCPU(t)
	for name, tt := range map[string]struct {
		attr libibverbs.DmahInitAttr
		want error
	}{
		"hint":               {libibverbs.DmahInitAttr{CompMask: withHint, Ph: 3}, nil},
		"all":                {libibverbs.DmahInitAttr{CompMask: withHint | withCPU | withKind, CpuId: cpu, TphMemType: 1}, nil},
		"not in the mask":    {libibverbs.DmahInitAttr{CompMask: withHint, CpuId: math.MaxUint32, TphMemType: 9}, nil},
		"no hint":            {libibverbs.DmahInitAttr{}, syscall.EINVAL},
		"hint too large":     {libibverbs.DmahInitAttr{CompMask: withHint, Ph: 4}, syscall.EINVAL},
		"CPU without a kind": {libibverbs.DmahInitAttr{CompMask: withHint | withCPU, CpuId: cpu}, syscall.EINVAL},
		"kind without a CPU": {libibverbs.DmahInitAttr{CompMask: withHint | withKind}, syscall.EINVAL},
		"CPU that is not":    {libibverbs.DmahInitAttr{CompMask: withHint | withCPU | withKind, CpuId: 0xFFFF}, syscall.EPERM},
		"largest CPU":        {libibverbs.DmahInitAttr{CompMask: withHint | withCPU | withKind, CpuId: math.MaxUint32}, syscall.EPERM},
		"kind that is not":   {libibverbs.DmahInitAttr{CompMask: withHint | withCPU | withKind, CpuId: cpu, TphMemType: 2}, syscall.EOPNOTSUPP},
		"field that is not":  {libibverbs.DmahInitAttr{CompMask: withHint | 1<<31}, syscall.EOPNOTSUPP},
	} {
		h, err := libibverbs.AllocDmah(r.c, &tt.attr)
		require.ErrorIs(t, err, tt.want, name)
		if tt.want == nil {
			require.NoError(t, libibverbs.DeallocDmah(h), name)
		}
	}
}

// A region with a DMA handle works as any other, and keeps the handle.
func TestDmahRegion(t *testing.T) {
	before := self().held()
	r, other := newRig(t), newRig(t)
	h, err := libibverbs.AllocDmah(r.c, &libibverbs.DmahInitAttr{CompMask: withHint})
	require.NoError(t, err)
	gone, err := libibverbs.AllocDmah(r.c, &libibverbs.DmahInitAttr{CompMask: withHint})
	require.NoError(t, err)
	require.NoError(t, libibverbs.DeallocDmah(gone))
	for name, err := range map[string]error{
		"no handle":         failed(r.dmahRegion(r.pd, nil, 0)),
		"handle that ended": failed(r.dmahRegion(r.pd, gone, 0)),
		"of another file":   failed(r.dmahRegion(other.pd, h, 0)),
		"on demand":         failed(r.dmahRegion(r.pd, h, libibverbs.IBV_ACCESS_ON_DEMAND)),
		"bad access":        failed(r.dmahRegion(r.pd, h, libibverbs.IBV_ACCESS_REMOTE_WRITE)),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	mr, err := r.dmahRegion(r.pd, h, libibverbs.IBV_ACCESS_LOCAL_WRITE)
	require.NoError(t, err)
	require.EqualValues(t, 4096, mr.Length)
	require.ErrorIs(t, libibverbs.DeallocDmah(h), syscall.EBUSY)
	i := r.importer()
	imported, err := libibverbs.ImportMr(i.pd, mr.Handle)
	require.NoError(t, err)
	libibverbs.UnimportMr(imported)
	require.ErrorIs(t, libibverbs.DeallocDmah(h), syscall.EBUSY, "an import does not count")
	require.NoError(t, libibverbs.CloseDevice(i.c))
	require.NoError(t, libibverbs.DeregMr(mr))
	require.NoError(t, libibverbs.DeallocDmah(h))
	require.NotEqual(t, before, self().held())

	closed := openRig(t)
	h, err = libibverbs.AllocDmah(closed.c, &libibverbs.DmahInitAttr{CompMask: withHint})
	require.NoError(t, err)
	_, err = closed.dmahRegion(closed.pd, h, 0)
	require.NoError(t, err)
	held := self().held()
	require.Equal(t, 1, held["DMA handles"])
	require.NoError(t, libibverbs.CloseDevice(closed.c))
	require.Zero(t, self().held()["DMA handles"])
}

// Threads register with a handle that another one deallocates.
func TestConcurrentDmah(t *testing.T) {
	r := newRig(t)
	for range 50 {
		h, err := libibverbs.AllocDmah(r.c, &libibverbs.DmahInitAttr{CompMask: withHint})
		require.NoError(t, err)
		var tasks sync.WaitGroup
		for range 4 {
			tasks.Go(func() {
				if mr, err := r.dmahRegion(r.pd, h, 0); err == nil {
					_ = libibverbs.DeregMr(mr)
				}
			})
		}
		first := libibverbs.DeallocDmah(h)
		tasks.Wait()
		if first != nil {
			require.ErrorIs(t, first, syscall.EBUSY)
			require.NoError(t, libibverbs.DeallocDmah(h), "its regions are gone")
		}
		require.Zero(t, self().held()["DMA handles"])
	}
}
