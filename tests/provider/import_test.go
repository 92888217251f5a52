// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"math"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/ibverbs/share"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

// Device memory of another process is used like one's own, but not freed.
func TestImportDM(t *testing.T) {
	r := open(t)
	original := keep(t, must(devmem.Alloc(r.c, 64, 0))(t))
	export := must(original.Export())(t)
	require.Equal(t, devmem.Export{Handle: original.Raw().Handle, Len: 64}, export)
	r.p.Forget()
	dm := must(devmem.Import(r.c, export))(t)
	require.Equal(t, []int64{address(r.c.Raw()), int64(export.Handle)}, r.p.Only("ibv_import_dm").Args())
	require.Equal(t, 64, dm.Len())
	require.Equal(t, 4, must(dm.WriteAt([]byte{1, 2, 3, 4}, 60))(t))
	require.Equal(t, address(dm.Raw()), r.p.Only("ibv_memcpy_to_dm").Arg(0))
	_, err := dm.WriteAt([]byte{1, 2, 3, 4}, 61)
	require.ErrorIs(t, err, syscall.EINVAL)

	mr := must(dm.Register(r.pd, 0, 64, ibverbs.AccessLocalWrite))(t)
	require.Equal(t, address(dm.Raw()), r.p.Only("ibv_reg_dm_mr").Arg(1))
	require.ErrorContains(t, dm.Close(), "imported DM ")
	require.ErrorIs(t, dm.Close(), syscall.EBUSY)
	require.NoError(t, mr.Close())
	r.p.Forget()
	raw := address(dm.Raw())
	require.NoError(t, dm.Close())
	require.NoError(t, dm.Close())
	require.Equal(t, []int64{raw}, r.p.Only("ibv_unimport_dm").Args())

	for _, n := range []uint64{0, math.MaxInt + 1, math.MaxUint64} {
		_, err := devmem.Import(r.c, devmem.Export{Handle: 1, Len: n})
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_import_dm", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = devmem.Import(r.c, devmem.Export{Handle: 5, Len: 6})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_import_dm (DM 5 of 6 bytes of fake0)")
	_, err = devmem.Import(nil, export)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Another device's memory can be reached by a DMA handle too.
func TestDMABufWithHandle(t *testing.T) {
	r := open(t)
	handle := keep(t, must(devmem.AllocDMAHandle(r.c, devmem.DMAHandleConfig{}))(t))
	r.p.Forget()
	b := ibverbs.DMABuf{FD: 5, Offset: 0x2010, Length: 300, IOVA: 0x7010}
	mr := keep(t, must(handle.RegisterDMABuf(r.pd, b, ibverbs.AccessLocalWrite))(t))
	require.Equal(t, libibverbs.MrInitAttr{
		Length: 300, Access: 1, Iova: 0x7010, Fd: 5, FdOffset: 0x2010, Dmah: handle.Raw(),
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_FD |
			libibverbs.IBV_REG_MR_MASK_FD_OFFSET | libibverbs.IBV_REG_MR_MASK_DMAH),
	}, *fakelib.Struct[libibverbs.MrInitAttr](r.p.Only("ibv_reg_mr_ex"), 1))
	require.Equal(t, ibverbs.RemoteBuffer{Addr: 0x7010, RKey: mr.RKey(), Len: 300}, mr.Remote())
	require.Nil(t, mr.Bytes())
	require.ErrorContains(t, handle.Close(), "close first: MR ")

	other := keep(t, must(ibverbs.Open("fake0"))(t))
	foreign := keep(t, must(devmem.AllocDMAHandle(other, devmem.DMAHandleConfig{}))(t))
	_, err := foreign.RegisterDMABuf(r.pd, b, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "of fake0): DMA handle of fake0 belongs to another open device")
	for _, none := range []*devmem.DMAHandle{nil, {}} {
		_, err = none.RegisterDMABuf(r.pd, b, 0)
		require.ErrorIs(t, err, os.ErrInvalid)
	}
	r.p.Next("ibv_reg_mr_ex", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = handle.RegisterDMABuf(r.pd, b, 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_reg_mr_ex (300 bytes at 8208 of descriptor 5 on PD ")
}

// A region of another process is part of requests by its address there.
func TestImportMR(t *testing.T) {
	r := open(t)
	original := keep(t, must(r.pd.Alloc(4096, ibverbs.AccessLocalWrite))(t))
	export := must(share.ExportMR(original))(t)
	require.Equal(t, share.MRExport{Handle: original.Raw().Handle, Addr: original.Remote().Addr, Len: 4096}, export)
	export.Addr = 0x7000
	dm := keep(t, must(devmem.Alloc(r.c, 64, 0))(t))
	onDM := keep(t, must(dm.Register(r.pd, 16, 48, 0))(t))
	require.Equal(t, share.MRExport{Handle: onDM.Raw().Handle, Len: 48}, must(share.ExportMR(onDM))(t))
	pd := keep(t, must(share.ImportPD(r.c, r.pd.Raw().Handle))(t))
	qp := r.qp(ibverbs.QPTypeRC)
	r.p.Forget()

	mr := must(share.ImportMR(pd, export))(t)
	require.Equal(t, []int64{address(pd.Raw()), int64(export.Handle)}, r.p.Only("ibv_import_mr").Args())
	require.Equal(t, []any{4096, mr.Raw().Lkey}, []any{mr.Len(), mr.LKey()})
	require.Equal(t, ibverbs.RemoteBuffer{Addr: 0x7000, RKey: mr.Raw().Rkey, Len: 4096}, mr.Remote())
	require.Nil(t, mr.Sub(0, 1).Bytes())
	recv := must(ibverbs.NewRecvBatch(1, 1))(t)
	require.ErrorIs(t, recv.Recv(1, mr.Sub(4096, 1)), syscall.EINVAL)
	require.NoError(t, recv.Recv(1, mr.Sub(96, 4000)))
	require.Equal(t, 1, must(qp.PostRecv(recv))(t))
	call := r.p.Only("ibv_post_recv")
	require.Equal(t, []libibverbs.Sge{{Addr: 0x7000 + 96, Length: 4000, Lkey: mr.LKey()}},
		fakelib.Follow[libibverbs.Sge](call, &fakelib.Struct[libibverbs.RecvWr](call, 1).SgList, 1))
	for _, none := range []*share.ImportedMR{nil, {}} {
		require.ErrorIs(t, recv.WR(0).SetSegments(none.Sub(0, 0)), syscall.EINVAL)
	}
	send := must(ibverbs.NewSendBatch(1, 1))(t)
	require.ErrorIs(t, send.Send(1, ibverbs.SendInline, mr.Sub(0, 1)), syscall.EINVAL)

	require.ErrorContains(t, pd.Close(), "close first: imported MR ")
	raw := address(mr.Raw())
	require.NoError(t, mr.Close())
	require.NoError(t, mr.Close())
	require.Equal(t, []int64{raw}, r.p.Only("ibv_unimport_mr").Args())
	require.ErrorIs(t, recv.WR(0).SetSegments(mr.Sub(0, 1)), os.ErrClosed)
	export.Len = math.MaxUint64
	_, err := share.ImportMR(pd, export)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Empty(t, r.p.Names())
}
