//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package provider

import (
	"errors"
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

func TestBuf(t *testing.T) {
	r := open(t)
	const size = 8192
	buf := must(r.pd.AllocBuf(size))(t)
	call := r.p.Only("ibv_alloc_buf")
	require.Equal(t, []int64{address(r.pd.Raw()), size}, call.Args()[:2])
	require.Equal(t, call.Result(), address(unsafe.SliceData(buf.Bytes())))
	require.Len(t, buf.Bytes(), size)
	require.Equal(t, []any{size, r.pd}, []any{buf.Len(), buf.PD()})
	clear(buf.Bytes())

	mr := must(buf.Register(4096, 100, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
	base := call.Result()
	require.Equal(t, []int64{address(r.pd.Raw()), address(buf.Raw()), base + 4096, 100, 3}, r.p.Only("ibv_reg_buf_mr").Args())
	require.Same(t, &buf.Bytes()[4096], &mr.Bytes()[0])
	require.Equal(t, ibverbs.RemoteBuffer{Addr: uint64(base) + 4096, RKey: mr.RKey(), Len: 100}, mr.Remote())
	require.Equal(t, 100, cap(mr.Bytes()))
	all := must(buf.Register(0, size, 0))(t)
	r.p.Forget()

	var busy *ibverbs.BusyError
	require.ErrorAs(t, buf.Close(), &busy)
	require.Len(t, busy.Children, 2)
	require.ErrorContains(t, r.pd.Close(), ", buffer of 8192 bytes on PD ")
	require.Empty(t, r.p.Names())

	r.p.Next("ibv_export_buf_dmabuf_fd").Returns(7, 0)
	require.Equal(t, 7, must(buf.ExportDMABuf())(t))
	r.p.Next("ibv_export_buf_dmabuf_fd").Returns(-1, syscall.ENODATA)
	_, err := buf.ExportDMABuf()
	require.ErrorIs(t, err, syscall.ENODATA)
	require.ErrorContains(t, err, "ibv_export_buf_dmabuf_fd (buffer of 8192 bytes on PD ")
	r.p.Forget()

	raw := address(buf.Raw())
	for _, o := range []interface{ Close() error }{mr, all, buf, buf} {
		require.NoError(t, o.Close())
	}
	require.Equal(t, []string{"ibv_dereg_mr", "ibv_dereg_mr", "ibv_free_buf"}, r.p.Names())
	require.Equal(t, []int64{raw}, r.p.Calls()[2].Args())
	require.Nil(t, buf.Bytes())
	_, err = buf.Register(0, 1, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = buf.ExportDMABuf()
	require.ErrorIs(t, err, os.ErrClosed)
}

func TestBufRefused(t *testing.T) {
	r := open(t)
	for _, size := range []int{0, -1, math.MinInt} {
		_, err := r.pd.AllocBuf(size)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_alloc_buf").Returns(0, syscall.ENOMEM)
	_, err := r.pd.AllocBuf(64)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_alloc_buf (64 bytes on PD ")

	buf := keep(t, must(r.pd.AllocBuf(64))(t))
	r.p.Forget()
	for _, tt := range []struct {
		offset, n int
		access    ibverbs.AccessFlags
	}{
		{-1, 1, 0},
		{0, 0, 0},
		{0, -1, 0},
		{0, 65, 0},
		{64, 1, 0},
		{math.MaxInt, math.MaxInt, 0},
		{math.MinInt, math.MaxInt, 0},
		{0, 64, ibverbs.AccessRemoteWrite},
		{0, 64, ibverbs.AccessZeroBased},
	} {
		_, err := buf.Register(tt.offset, tt.n, tt.access)
		require.ErrorIs(t, err, syscall.EINVAL, tt)
		require.ErrorContains(t, err, "ibv_reg_buf_mr (", tt)
	}
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_reg_buf_mr").Returns(0, syscall.EOPNOTSUPP)
	_, err = buf.Register(0, 64, 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_reg_buf_mr (64 bytes at 0 of buffer of 64 bytes on PD ")

	for _, none := range []*ibverbs.Buf{nil, {}} {
		_, err = none.Register(0, 1, 0)
		require.ErrorIs(t, err, os.ErrInvalid)
		_, err = none.ExportDMABuf()
		require.ErrorIs(t, err, os.ErrInvalid)
		require.ErrorIs(t, none.Close(), os.ErrInvalid)
	}
	_, err = (*ibverbs.PD)(nil).AllocBuf(1)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Memory that a confidential guest shares with its host comes from a domain
// that allows it.
func TestUnprotectedBuf(t *testing.T) {
	r := open(t)
	domain := keep(t, must(r.pd.AllocUnprotectedParentDomain(nil))(t))
	require.Equal(t, libibverbs.ParentDomainInitAttr{
		Pd: r.pd.Raw(), CompMask: uint32(libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC),
	}, r.parentDomainAttr())
	buf := keep(t, must(domain.AllocBuf(64))(t))
	require.Equal(t, address(domain.Raw()), r.p.Only("ibv_alloc_buf").Arg(0))
	mr := keep(t, must(buf.Register(0, 64, 0))(t))
	require.Equal(t, address(domain.Raw()), r.p.Only("ibv_reg_buf_mr").Arg(0))
	require.Same(t, domain, mr.PD())
	require.ErrorIs(t, domain.Close(), syscall.EBUSY)
}
