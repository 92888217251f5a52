// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// dm allocates device memory.
func (r *rig) dm(length uint64) *libibverbs.Dm {
	r.t.Helper()
	dm, err := libibverbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: length})
	require.NoError(r.t, err)
	return dm
}

// attrEx returns what the device says of itself.
func (r *rig) attrEx() libibverbs.DeviceAttrEx {
	r.t.Helper()
	attr := alloc[libibverbs.DeviceAttrEx]()
	defer free(attr)
	require.NoError(r.t, libibverbs.QueryDeviceEx(r.c, nil, attr))
	return *attr
}

// Programs copy to and from device memory, within its bounds.
func TestCopyDM(t *testing.T) {
	r := newRig(t)
	dm := r.dm(100)
	from, to := unsafe.Pointer(&r.memory[0]), unsafe.Pointer(&r.memory[1000])
	require.NoError(t, libibverbs.MemcpyFromDm(to, dm, 0, 100))
	require.Equal(t, make([]byte, 100), r.memory[1000:1100], "it is zeroed")
	for i := range 100 {
		r.memory[i] = byte(i)
	}
	for name, tt := range map[string]struct {
		offset, length uint64
		want           error
	}{
		"all":                {0, 100, nil},
		"a part":             {4, 8, nil},
		"an odd offset":      {3, 8, syscall.EINVAL},
		"an odd length":      {4, 5, syscall.EINVAL},
		"nothing":            {100, 0, nil},
		"past the end":       {99, 2, syscall.EFAULT},
		"after the end":      {101, 0, syscall.EFAULT},
		"longest":            {1, math.MaxUint64, syscall.EFAULT},
		"around the top":     {math.MaxUint64, 2, syscall.EFAULT},
		"the largest offset": {math.MaxUint64, 0, syscall.EFAULT},
	} {
		clear(r.memory[1000:1100])
		require.ErrorIs(t, libibverbs.MemcpyToDm(dm, tt.offset, from, tt.length), tt.want, name)
		require.ErrorIs(t, libibverbs.MemcpyFromDm(to, dm, tt.offset, tt.length), tt.want, name)
		if tt.want == nil {
			require.Equal(t, r.memory[:tt.length], r.memory[1000:][:tt.length], name)
		}
	}
}

// Device memory stays while it has regions, and goes with its device.
func TestFreeDM(t *testing.T) {
	r := newRig(t)
	all := r.attrEx().MaxDmSize
	require.NotZero(t, all)
	dm := r.dm(all)
	_, err := libibverbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: 1})
	require.ErrorIs(t, err, syscall.ENOMEM)
	for name, a := range map[string]*libibverbs.AllocDmAttr{
		"more than all":    {Length: all + 1},
		"nothing":          {},
		"an unknown field": {Length: 1, CompMask: 1},
		"alignment":        {Length: 1, LogAlignReq: 63},
	} {
		_, err := libibverbs.AllocDm(r.c, a)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	m, err := libibverbs.RegDmMr(r.pd, dm, 8, 16, libibverbs.IBV_ACCESS_ZERO_BASED)
	require.NoError(t, err)
	require.EqualValues(t, 16, m.Length)
	require.Zero(t, uintptr(m.Addr))
	require.ErrorIs(t, libibverbs.FreeDm(dm), syscall.EBUSY)
	_, failed := verbs.RegDmMr(r.pd, nil, 0, 1, libibverbs.IBV_ACCESS_ZERO_BASED)
	require.Equal(t, syscall.EINVAL, failed)
	_, failed = verbs.RegDmMr(nil, dm, 0, 1, libibverbs.IBV_ACCESS_ZERO_BASED)
	require.Equal(t, syscall.EINVAL, failed)
	code, failed := verbs.ReregMr(m, libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, 0, 0, 0)
	require.Equal(t, syscall.EOPNOTSUPP, failed)
	require.EqualValues(t, libibverbs.IBV_REREG_MR_ERR_CMD, code)
	require.NoError(t, libibverbs.DeregMr(m))
	require.NoError(t, libibverbs.FreeDm(dm))

	other := newRig(t)
	dm = r.dm(1)
	require.NotEqual(t, dm.Handle, other.dm(1).Handle)
	_, failed = verbs.RegDmMr(other.pd, dm, 0, 1, libibverbs.IBV_ACCESS_ZERO_BASED)
	require.Equal(t, syscall.EINVAL, failed, "of another opened device")
}

// A small device has no device memory, no on-demand paging and no null regions.
func TestWithoutMemoryOfItsOwn(t *testing.T) {
	if !limitedTo(t, "dm=0,odp=0,null-mr=0") {
		return
	}
	r := newRig(t)
	a := r.attrEx()
	require.Zero(t, a.MaxDmSize)
	require.Zero(t, a.OdpCaps)
	_, err := libibverbs.AllocDm(r.c, &libibverbs.AllocDmAttr{Length: 1})
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = libibverbs.AllocNullMr(r.pd)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	_, err = libibverbs.RegMr(r.pd, start(r.memory), 8, libibverbs.IBV_ACCESS_ON_DEMAND)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	err = libibverbs.AdviseMr(r.pd, libibverbs.IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH, 0, &libibverbs.Sge{Lkey: r.mr.Lkey}, 1)
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
}
