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
	"github.com/verbena-go/verbena/internal/fakelib"
)

// Device memory of another process is used like one's own, but not freed.
func TestImportDM(t *testing.T) {
	r := open(t)
	original := keep(t, must(r.c.AllocDM(64, 0))(t))
	export := original.Export()
	require.Equal(t, ibverbs.DMExport{Handle: original.Raw().Handle, Len: 64}, export)
	r.p.Forget()
	dm := must(r.c.ImportDM(export))(t)
	require.Equal(t, []int64{address(r.c.Raw()), int64(export.Handle)}, r.p.Only("ibv_import_dm").Args())
	require.Equal(t, 64, dm.Len())
	require.Equal(t, 4, must(dm.WriteAt([]byte{1, 2, 3, 4}, 60))(t))
	require.Equal(t, address(dm.Raw()), r.p.Only("ibv_memcpy_to_dm").Arg(0))
	_, err := dm.WriteAt([]byte{1, 2, 3, 4}, 61)
	require.ErrorIs(t, err, syscall.EINVAL)

	mr := must(r.pd.RegisterDM(dm, 0, 64, ibverbs.AccessLocalWrite))(t)
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
		_, err := r.c.ImportDM(ibverbs.DMExport{Handle: 1, Len: n})
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_import_dm").Returns(0, syscall.EOPNOTSUPP)
	_, err = r.c.ImportDM(ibverbs.DMExport{Handle: 5, Len: 6})
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_import_dm (DM 5 of 6 bytes of fake0)")
	_, err = (*ibverbs.Context)(nil).ImportDM(export)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Another device's memory can be reached by a DMA handle too.
func TestDMABufWithHandle(t *testing.T) {
	r := open(t)
	handle := keep(t, must(r.c.AllocDMAHandle(ibverbs.DMAHandleConfig{}))(t))
	r.p.Forget()
	b := ibverbs.DMABuf{FD: 5, Offset: 0x2010, Length: 300, IOVA: 0x7010, Handle: handle}
	mr := keep(t, must(r.pd.RegisterDMABuf(b, ibverbs.AccessLocalWrite))(t))
	require.Equal(t, libibverbs.MrInitAttr{
		Length: 300, Access: 1, Iova: 0x7010, Fd: 5, FdOffset: 0x2010, Dmah: handle.Raw(),
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_FD |
			libibverbs.IBV_REG_MR_MASK_FD_OFFSET | libibverbs.IBV_REG_MR_MASK_DMAH),
	}, *fakelib.Struct[libibverbs.MrInitAttr](r.p.Only("ibv_reg_mr_ex"), 1))
	require.Equal(t, ibverbs.RemoteBuffer{Addr: 0x7010, RKey: mr.RKey(), Len: 300}, mr.Remote())
	require.Nil(t, mr.Bytes())
	require.ErrorContains(t, handle.Close(), "close first: MR ")

	other := keep(t, must(ibverbs.Open("fake0"))(t))
	b.Handle = keep(t, must(other.AllocDMAHandle(ibverbs.DMAHandleConfig{}))(t))
	_, err := r.pd.RegisterDMABuf(b, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "ibv_reg_mr_ex (DMA handle of fake0, which is not of the same open device, on PD ")
	b.Handle = &ibverbs.DMAHandle{}
	_, err = r.pd.RegisterDMABuf(b, 0)
	require.ErrorIs(t, err, os.ErrInvalid)
	b.Handle = handle
	r.p.Next("ibv_reg_mr_ex").Returns(0, syscall.EOPNOTSUPP)
	_, err = r.pd.RegisterDMABuf(b, 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_reg_mr_ex (300 bytes at 8208 of descriptor 5 on PD ")
}
