// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package memory

import (
	"errors"
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

func TestNullRegion(t *testing.T) {
	r := newRig(t)
	r.has("ibv_alloc_null_mr")
	raw := gives(r, object[libibverbs.Mr](t))
	raw.Lkey = 9
	mr, err := r.pd.AllocNullMR()
	require.NoError(t, err)
	r.requireCalled("ibv_alloc_null_mr", address(r.pd.Raw()))
	require.Nil(t, mr.Bytes())
	require.Nil(t, mr.Sub(0, 8).Bytes())
	batch, err := ibverbs.NewRecvBatch(2, 1)
	require.NoError(t, err)
	require.NoError(t, batch.Recv(1, mr.Sub(0, 1<<20)))
	require.NoError(t, batch.Recv(2, mr.Sub(1<<40, 8)))
	r.closes(mr, r.pd)
	_, err = r.pd.AllocNullMR()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestImplicitRegion(t *testing.T) {
	r := newRig(t)
	raw := object[libibverbs.Mr](t)
	gives(r, raw) // of the query before, that is an error
	mr, err := r.pd.RegisterImplicit(ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	r.requireCalled("ibv_reg_mr", address(r.pd.Raw()), 0, math.MaxUint64)
	require.Equal(t, ibverbs.AccessLocalWrite|ibverbs.AccessOnDemand, mr.Access())
	require.Nil(t, mr.Bytes())
	remote, err := mr.Sub(0x7f0000001000, 4096).Remote()
	require.NoError(t, err)
	require.EqualValues(t, 0x7f0000001000, remote.Addr)

	r.has("ibv_advise_mr")
	r.lib.Returns(0, 0)
	require.NoError(t, r.pd.Advise(ibverbs.AdvicePrefetchWrite, true, mr.Sub(4096, 4096), mr.Sub(0, 1)))
	_, _, args := r.lib.Called()
	require.Equal(t, []int64{1, 1}, args[1:3], "advice and flags")
	require.EqualValues(t, 2, uint32(args[4]))
	r.lib.Returns(int64(syscall.EFAULT), 0)
	require.ErrorIs(t, r.pd.Advise(ibverbs.AdvicePrefetch, false, mr.Sub(0, 1)), syscall.EFAULT)

	for name, access := range map[string]ibverbs.AccessFlags{
		"AccessHugeTLB":     ibverbs.AccessHugeTLB,
		"AccessZeroBased":   ibverbs.AccessZeroBased,
		"AccessRemoteWrite": ibverbs.AccessRemoteWrite,
	} {
		_, err := r.pd.RegisterImplicit(access)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, name)
	}
	r.lib.Returns(0, 0) // a query that says what the device cannot do
	_, err = r.pd.RegisterImplicit(0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "(PD 0 of fake0): the device does not support AccessOnDemand for the whole address space")
	r.closes(mr, r.pd)
}

func TestAdviseRefused(t *testing.T) {
	r := newRig(t)
	plain := r.newMR(ibverbs.AccessLocalWrite)
	paged := r.newMR(ibverbs.AccessOnDemand)
	r.lib.Returns(0, 0)
	for name, tt := range map[string]struct {
		err  error
		want error
		text string
	}{
		"none":         {r.pd.Advise(ibverbs.AdvicePrefetch, false), syscall.EINVAL, "Advise needs at least one segment"},
		"no region":    {r.pd.Advise(ibverbs.AdvicePrefetch, false, ibverbs.Segment{}), os.ErrInvalid, "ibv_advise_mr"},
		"not paged":    {r.pd.Advise(ibverbs.AdvicePrefetch, false, plain.All()), syscall.EINVAL, "does not have AccessOnDemand"},
		"outside":      {r.pd.Advise(ibverbs.AdvicePrefetch, false, paged.Sub(0, 4097)), syscall.EINVAL, "is outside"},
		"not to write": {r.pd.Advise(ibverbs.AdvicePrefetchWrite, false, paged.All()), syscall.EINVAL, "does not have AccessLocalWrite"},
		"other domain": {r.newPD().Advise(ibverbs.AdvicePrefetch, false, paged.All()), syscall.EINVAL, "belongs to PD 0 of fake0"},
	} {
		require.ErrorIs(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, tt.text, name)
	}
	r.closes(plain, paged, r.pd)
	require.ErrorIs(t, r.pd.Advise(ibverbs.AdvicePrefetch, false, paged.All()), os.ErrClosed)
}

func TestDMABufRegion(t *testing.T) {
	r := newRig(t)
	raw := gives(r, object[libibverbs.Mr](t))
	raw.Rkey = 8
	buf := ibverbs.DMABuf{FD: 5, Offset: 0x2010, Length: 300, IOVA: 0x7010}
	mr, err := r.pd.RegisterDMABuf(buf, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	r.requireCalled("ibv_reg_dmabuf_mr", address(r.pd.Raw()), 0x2010, 300, 0x7010)
	require.Nil(t, mr.Bytes())
	require.Equal(t, ibverbs.RemoteBuffer{Addr: 0x7010, RKey: 8, Len: 300}, mr.Remote())
	r.lib.Returns(0, int32(syscall.EBADF))
	_, err = r.pd.RegisterDMABuf(buf, 0)
	require.ErrorIs(t, err, syscall.EBADF)
	require.ErrorContains(t, err, "ibv_reg_dmabuf_mr (300 bytes at 8208 of descriptor 5 on PD 0 of fake0)")
	r.closes(mr, r.pd)
}

// A region whose windows keep it says which they are.
func TestRegionWithWindow(t *testing.T) {
	r := newRig(t)
	r.has("ibv_dealloc_mw")
	// The library has no operation of ibv_alloc_mw; another one returns as well.
	r.has("ibv_alloc_null_mr")
	r.c.Raw().Ops.AllocMw = extended(r.c.Raw()).AllocNullMr
	raw := object[libibverbs.Mw](t)
	mr := r.newMR(ibverbs.AccessLocalWrite | ibverbs.AccessWindowBind)
	gives(r, raw)
	raw.Handle, raw.Rkey = 4, 0x1ff
	mw, err := r.pd.AllocMW(ibverbs.MWType2)
	require.NoError(t, err)
	raw.Context = r.c.Raw()
	batch, err := ibverbs.NewSendBatch(2, 0)
	require.NoError(t, err)
	require.NoError(t, batch.BindMW(1, mw, ibverbs.Binding{Memory: mr.Sub(96, 4000), Access: ibverbs.AccessRemoteRead | ibverbs.AccessZeroBased}, 0))
	require.Equal(t, ibverbs.RemoteBuffer{RKey: 0x100, Len: 4000}, mw.Remote())
	require.EqualValues(t, 0x1ff, raw.Rkey, "until the next bind")
	require.NoError(t, batch.BindMW(2, mw, ibverbs.Binding{Memory: mr.All()}, 0))
	require.EqualValues(t, 0x100, raw.Rkey)
	require.Equal(t, ibverbs.RemoteBuffer{Addr: mr.Remote().Addr, RKey: 0x101, Len: 4096}, mw.Remote())

	for _, errno := range []syscall.Errno{syscall.EBUSY, syscall.EINVAL} {
		r.lib.Returns(int64(errno), 0)
		var busy *ibverbs.BusyError
		require.ErrorAs(t, mr.Close(), &busy)
		require.Equal(t, []string{"MW 4 of fake0"}, busy.Children)
		require.NotNil(t, mr.Bytes(), "still open")
	}
	r.lib.Returns(int64(syscall.ENOENT), 0)
	require.ErrorIs(t, mr.Close(), syscall.ENOENT)
	r.closes(mw)
	r.lib.Returns(int64(syscall.EBUSY), 0)
	require.EqualError(t, mr.Close(), "ibv_dereg_mr (MR 0x1 of fake0): device or resource busy")
	r.closes(mr, r.pd)
}
