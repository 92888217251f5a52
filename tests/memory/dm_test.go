// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"io"
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
)

// newDM returns 64 bytes of device memory.
func (r *rig) newDM() *devmem.DM {
	r.t.Helper()
	for _, f := range []string{"ibv_alloc_dm", "ibv_free_dm", "ibv_reg_dm_mr"} {
		r.has(f)
	}
	raw := gives(r, object[libibverbs.Dm](r.t))
	dm, err := devmem.Alloc(r.c, 64, 4096)
	require.NoError(r.t, err)
	raw.Context = r.c.Raw()
	raw.MemcpyToDm = (*libibverbs.Dm)(r.lib.Object("ibv_memcpy_to_dm")).MemcpyToDm
	raw.MemcpyFromDm = (*libibverbs.Dm)(r.lib.Object("ibv_memcpy_from_dm")).MemcpyFromDm
	return dm
}

func TestDeviceMemory(t *testing.T) {
	r := newRig(t)
	dm := r.newDM()
	require.Equal(t, 64, dm.Len())
	raw, p := address(dm.Raw()), make([]byte, 16)

	r.lib.Returns(0, 0)
	n, err := dm.WriteAt(p, 48)
	require.NoError(t, err)
	require.Equal(t, 16, n)
	r.requireCalled("ibv_memcpy_to_dm", raw, 48, address(&p[0]), 16)
	n, err = dm.ReadAt(p, 40)
	require.NoError(t, err)
	require.Equal(t, 16, n)
	r.requireCalled("ibv_memcpy_from_dm", address(&p[0]), raw, 40, 16)
	n, err = dm.ReadAt(p, 60)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 4, n)
	r.requireCalled("ibv_memcpy_from_dm", address(&p[0]), raw, 60, 4)

	r.lib.Returns(7, 0)
	fd, err := dm.ExportDMABuf()
	require.NoError(t, err)
	require.Equal(t, 7, fd)

	r.lib.Returns(int64(syscall.EFAULT), 0)
	for name, call := range map[string]func([]byte, int64) (int, error){"to": dm.WriteAt, "from": dm.ReadAt} {
		n, err := call(p, 0)
		require.ErrorIs(t, err, syscall.EFAULT)
		require.ErrorContains(t, err, "ibv_memcpy_"+name+"_dm (DM of 64 bytes of fake0)")
		require.Zero(t, n)
	}
	r.closes(dm, r.pd)
}

// Ranges outside of the memory do not reach C.
func TestDeviceMemoryOutside(t *testing.T) {
	r := newRig(t)
	dm := r.newDM()
	p := make([]byte, 16)
	r.lib.Returns(0, 0)
	for _, off := range []int64{-1, 49, 64, 65, math.MaxInt64, math.MinInt64} {
		_, err := dm.WriteAt(p, off)
		require.ErrorIs(t, err, syscall.EINVAL, off)
	}
	for off, want := range map[int64]error{-1: syscall.EINVAL, 64: io.EOF, 65: io.EOF, math.MaxInt64: io.EOF} {
		n, err := dm.ReadAt(p, off)
		require.ErrorIs(t, err, want, off)
		require.Zero(t, n)
	}
	n, err := dm.WriteAt(nil, 64)
	require.NoError(t, err)
	require.Zero(t, n)
	_, times, _ := r.lib.Called()
	require.Zero(t, times)

	for _, size := range []int{0, -1} {
		_, err := devmem.Alloc(r.c, size, 0)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	for _, align := range []int{-1, 3} {
		_, err := devmem.Alloc(r.c, 64, align)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	r.closes(dm, r.pd)
	_, err = dm.WriteAt(p, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = dm.ReadAt(p, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = dm.ExportDMABuf()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestDeviceMemoryRegion(t *testing.T) {
	r := newRig(t)
	dm := r.newDM()
	raw := gives(r, object[libibverbs.Mr](t))
	raw.Lkey, raw.Rkey = 5, 6
	mr, err := dm.Register(r.pd, 16, 48, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	zeroBased := uint64(ibverbs.AccessLocalWrite | ibverbs.AccessZeroBased)
	r.requireCalled("ibv_reg_dm_mr", address(r.pd.Raw()), address(dm.Raw()), 16, 48, zeroBased)
	require.Nil(t, mr.Bytes())
	require.Nil(t, mr.All().Bytes())
	require.Equal(t, ibverbs.RemoteBuffer{RKey: 6, Len: 48}, mr.Remote())
	remote, err := mr.Sub(8, 40).Remote()
	require.NoError(t, err)
	require.Equal(t, ibverbs.RemoteBuffer{Addr: 8, RKey: 6, Len: 40}, remote)
	require.EqualError(t, dm.Close(), "DM of 64 bytes of fake0: close first: MR 0x5 of fake0")

	batch, err := ibverbs.NewSendBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, batch.Send(1, 0, mr.Sub(8, 8)))
	require.ErrorContains(t, batch.Send(2, ibverbs.SendInline, mr.Sub(8, 8)), "cannot be sent inline")
	require.ErrorIs(t, mr.Rereg(ibverbs.ReregConfig{PD: r.pd}), syscall.EINVAL)

	for _, tt := range []struct {
		offset, n int
		access    ibverbs.AccessFlags
	}{
		{-1, 8, 0},
		{0, 0, 0},
		{0, 65, 0},
		{64, 1, 0},
		{math.MaxInt, 1, 0},
		{0, -1, 0},
		{0, 8, ibverbs.AccessRemoteWrite},
		{0, 8, ibverbs.AccessOnDemand},
	} {
		_, err := dm.Register(r.pd, tt.offset, tt.n, tt.access)
		require.ErrorIs(t, err, syscall.EINVAL, tt)
	}
	_, err = (*devmem.DM)(nil).Register(r.pd, 0, 8, 0)
	require.ErrorIs(t, err, os.ErrInvalid)
	r.closes(mr, dm, r.pd)
	_, err = dm.Register(r.newPD(), 0, 8, 0)
	require.ErrorIs(t, err, os.ErrClosed)
}
