// SPDX-License-Identifier: Apache-2.0

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
	"github.com/verbena-go/verbena/ibverbs/devmem"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
)

func TestAllocDM(t *testing.T) {
	r := open(t)
	for align, log := range map[int]uint32{0: 0, 1: 0, 2: 1, 4096: 12} {
		dm := must(devmem.Alloc(r.c, 64, align))(t)
		call := r.p.Only("ibv_alloc_dm")
		require.Equal(t, address(r.c.Raw()), call.Arg(0))
		require.Equal(t, libibverbs.AllocDmAttr{Length: 64, LogAlignReq: log}, *fakelib.Struct[libibverbs.AllocDmAttr](call, 1))
		require.NoError(t, dm.Close())
		require.Equal(t, []int64{call.Result()}, r.p.Only("ibv_free_dm").Args())
	}
}

// What of a handle's config is nil is not asked for.
func TestAllocDMAHandle(t *testing.T) {
	r := open(t)
	for name, tt := range map[string]struct {
		config devmem.DMAHandleConfig
		want   libibverbs.DmahInitAttr
	}{
		"nothing": {devmem.DMAHandleConfig{}, libibverbs.DmahInitAttr{}},
		"CPU":     {devmem.DMAHandleConfig{CPU: new(0)}, libibverbs.DmahInitAttr{CompMask: 1}},
		"all": {
			devmem.DMAHandleConfig{CPU: new(7), ProcessingHint: new(3), MemType: new(devmem.TPHPersistent)},
			libibverbs.DmahInitAttr{CompMask: 7, CpuId: 7, Ph: 3, TphMemType: uint8(devmem.TPHPersistent)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := must(devmem.AllocDMAHandle(r.c, tt.config))(t)
			require.Equal(t, tt.want, *fakelib.Struct[libibverbs.DmahInitAttr](r.p.Only("ibv_alloc_dmah"), 1))
			require.NoError(t, h.Close())
			r.p.Forget()
		})
	}
}

func TestRegisterDMA(t *testing.T) {
	r := open(t)
	memory := keep(t, must(r.pd.Alloc(4096, 0))(t)).Bytes()
	h := keep(t, must(devmem.AllocDMAHandle(r.c, devmem.DMAHandleConfig{}))(t))
	r.p.Forget()
	keep(t, must(h.Register(r.pd, memory, ibverbs.AccessLocalWrite))(t))
	call := r.p.Only("ibv_reg_mr_ex")
	require.Equal(t, address(r.pd.Raw()), call.Arg(0))
	attr := fakelib.Struct[libibverbs.MrInitAttr](call, 1)
	require.Equal(t, address(&memory[0]), address((*byte)(attr.Addr)))
	require.Equal(t, libibverbs.MrInitAttr{
		Length: 4096, Access: ibverbs.AccessLocalWrite, Iova: uint64(address(&memory[0])), Addr: attr.Addr, Dmah: h.Raw(),
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	}, *attr)
}

// The address of work requests can be another, or all of the process's.
func TestRegisterDMAElsewhere(t *testing.T) {
	r := open(t)
	memory := keep(t, must(r.pd.Alloc(4096, 0))(t)).Bytes()
	h := keep(t, must(devmem.AllocDMAHandle(r.c, devmem.DMAHandleConfig{}))(t))
	r.p.Forget()
	mr := keep(t, must(h.RegisterIOVA(r.pd, memory, 0x7000, ibverbs.AccessLocalWrite))(t))
	attr := fakelib.Struct[libibverbs.MrInitAttr](r.p.Only("ibv_reg_mr_ex"), 1)
	require.Equal(t, address(&memory[0]), address((*byte)(attr.Addr)))
	const mask = uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH)
	require.Equal(t, libibverbs.MrInitAttr{
		Length: 4096, Access: ibverbs.AccessLocalWrite, Iova: 0x7000, Addr: attr.Addr, Dmah: h.Raw(), CompMask: mask,
	}, *attr)
	require.EqualValues(t, 0x7008, must(mr.Sub(8, 8).Remote())(t).Addr)
	require.ErrorIs(t, h.Close(), syscall.EBUSY)

	_, err := h.RegisterIOVA(r.pd, memory, 0x7001, 0)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "ibv_reg_mr_ex")
	other := keep(t, must(ibverbs.Open("fake0"))(t))
	foreign := keep(t, must(devmem.AllocDMAHandle(other, devmem.DMAHandleConfig{}))(t))
	for name, register := range map[string]func(*devmem.DMAHandle) (*ibverbs.MR, error){
		"IOVA": func(h *devmem.DMAHandle) (*ibverbs.MR, error) {
			return h.RegisterIOVA(r.pd, memory, 0x7000, 0)
		},
		"implicit": func(h *devmem.DMAHandle) (*ibverbs.MR, error) {
			return h.RegisterImplicit(r.pd, 0)
		},
	} {
		_, err = register(foreign)
		require.ErrorContains(t, err, "belongs to another open device", name)
		_, err = register(nil)
		require.ErrorIs(t, err, os.ErrInvalid, name)
	}
	_, err = h.RegisterImplicit(r.pd, 0) // the device has no paging on demand
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "the device does not support AccessOnDemand for the whole address space")

	r.p.Forget()
	r.p.Next("ibv_query_device_ex", fakelib.Returns(int64(syscall.EIO), 0)) // which does not say what it can
	keep(t, must(h.RegisterImplicit(r.pd, ibverbs.AccessLocalWrite))(t))
	require.Equal(t, libibverbs.MrInitAttr{
		Length: math.MaxUint64, Access: libibverbs.AccessFlags(ibverbs.AccessLocalWrite | ibverbs.AccessOnDemand), Dmah: h.Raw(), CompMask: mask,
	}, *fakelib.Struct[libibverbs.MrInitAttr](r.p.Calls()[1], 1))
	r.p.Next("ibv_query_device_ex", fakelib.Returns(int64(syscall.EIO), 0))
	r.p.Next("ibv_reg_mr_ex", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = h.RegisterImplicit(r.pd, 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_reg_mr_ex (the whole address space with DMA handle of fake0 on PD")
}

func TestRegisterDMABuf(t *testing.T) {
	r := open(t)
	access := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite
	keep(t, must(r.pd.RegisterDMABuf(ibverbs.DMABuf{FD: 5, Offset: 0x2010, Length: 300, IOVA: 0x7010}, access))(t))
	require.Equal(t, []int64{address(r.pd.Raw()), 0x2010, 300, 0x7010, 5, int64(access)}, r.p.Only("ibv_reg_dmabuf_mr").Args())
}

func TestParentDomainAttr(t *testing.T) {
	r := open(t)
	td := keep(t, must(r.c.AllocTD())(t))
	require.Equal(t, libibverbs.TdInitAttr{}, *fakelib.Struct[libibverbs.TdInitAttr](r.p.Only("ibv_alloc_td"), 1))
	for _, tt := range []struct {
		td   *ibverbs.TD
		want libibverbs.ParentDomainInitAttr
	}{
		{td, libibverbs.ParentDomainInitAttr{Pd: r.pd.Raw(), Td: td.Raw()}},
		{nil, libibverbs.ParentDomainInitAttr{Pd: r.pd.Raw()}},
	} {
		domain := must(r.pd.AllocParentDomain(tt.td))(t)
		call := r.p.Only("ibv_alloc_parent_domain")
		require.Equal(t, tt.want, *fakelib.Struct[libibverbs.ParentDomainInitAttr](call, 1))

		// A queue pair of it is C's queue pair of the parent domain.
		cq := r.cq()
		qp := must(domain.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq}))(t)
		require.Equal(t, address(domain.Raw()), r.p.Only("ibv_create_qp").Arg(0))
		require.Same(t, domain, qp.PD())
		require.NoError(t, qp.Close())
		require.NoError(t, domain.Close())
		r.p.Forget()
	}
}

func TestBuf(t *testing.T) {
	r := open(t)
	const size = 8192
	buf := must(devmem.AllocBuf(r.pd, size))(t)
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

	r.p.Next("ibv_export_buf_dmabuf_fd", fakelib.Returns(7, 0))
	require.Equal(t, 7, must(buf.ExportDMABuf())(t))
	r.p.Next("ibv_export_buf_dmabuf_fd", fakelib.Returns(-1, syscall.ENODATA))
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
		_, err := devmem.AllocBuf(r.pd, size)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
	require.Empty(t, r.p.Names())
	r.p.Next("ibv_alloc_buf", fakelib.Returns(0, syscall.ENOMEM))
	_, err := devmem.AllocBuf(r.pd, 64)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.ErrorContains(t, err, "ibv_alloc_buf (64 bytes on PD ")

	buf := keep(t, must(devmem.AllocBuf(r.pd, 64))(t))
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
	r.p.Next("ibv_reg_buf_mr", fakelib.Returns(0, syscall.EOPNOTSUPP))
	_, err = buf.Register(0, 64, 0)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "ibv_reg_buf_mr (64 bytes at 0 of buffer of 64 bytes on PD ")

	for _, none := range []*devmem.Buf{nil, {}} {
		_, err = none.Register(0, 1, 0)
		require.ErrorIs(t, err, os.ErrInvalid)
		_, err = none.ExportDMABuf()
		require.ErrorIs(t, err, os.ErrInvalid)
		require.ErrorIs(t, none.Close(), os.ErrInvalid)
	}
	_, err = devmem.AllocBuf(nil, 1)
	require.ErrorIs(t, err, os.ErrInvalid)
}

// Memory that a confidential guest shares with its host comes from a domain
// that allows it.
func TestUnprotectedBuf(t *testing.T) {
	r := open(t)
	domain := keep(t, must(r.pd.AllocUnprotectedParentDomain(nil))(t))
	require.Equal(t, libibverbs.ParentDomainInitAttr{
		Pd: r.pd.Raw(), CompMask: libibverbs.IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
	}, r.parentDomainAttr())
	buf := keep(t, must(devmem.AllocBuf(domain, 64))(t))
	require.Equal(t, address(domain.Raw()), r.p.Only("ibv_alloc_buf").Arg(0))
	mr := keep(t, must(buf.Register(0, 64, 0))(t))
	require.Equal(t, address(domain.Raw()), r.p.Only("ibv_reg_buf_mr").Arg(0))
	require.Same(t, domain, mr.PD())
	require.ErrorIs(t, domain.Close(), syscall.EBUSY)
}
