// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"net/netip"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
)

// The device has no flags of queue pairs, and a program may say that it wants
// none.
func TestCreateFlags(t *testing.T) {
	r := newRig(t)
	cq := r.cq(4)
	const pd, flags = libibverbs.IBV_QP_INIT_ATTR_PD, libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS
	for name, tt := range map[string]struct {
		mask  libibverbs.QpInitAttrMask
		flags libibverbs.QpCreateFlags
		want  syscall.Errno
	}{
		"none":         {pd | flags, 0, 0},
		"not asked":    {pd, 0x100, 0},
		"one":          {pd | flags, libibverbs.IBV_QP_CREATE_BLOCK_SELF_MCAST_LB, syscall.EOPNOTSUPP},
		"unknown":      {pd | flags, 1 << 31, syscall.EOPNOTSUPP},
		"another mask": {pd | libibverbs.IBV_QP_INIT_ATTR_MAX_TSO_HEADER, 0, syscall.EOPNOTSUPP},
		"no domain":    {flags, 0, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			a := alloc[libibverbs.QpInitAttrEx]()
			defer free(a)
			*a = libibverbs.QpInitAttrEx{
				SendCq: cq, RecvCq: cq, QpType: libibverbs.IBV_QPT_UD, Pd: r.pd, CompMask: tt.mask, CreateFlags: tt.flags,
			}
			q, errno := verbs.CreateQpEx(r.c, a)
			require.Equal(t, tt.want, errno)
			if tt.want == 0 {
				require.Zero(t, verbs.DestroyQp(q))
			}
		})
	}
}

// A call that fails leaves the program's struct as it was, so that the program
// can call again.
func TestFailedCreateChangesNothing(t *testing.T) {
	r := newRig(t)
	cq := r.cq(4)
	srq, errno := verbs.CreateSrq(r.pd, &libibverbs.SrqInitAttr{Attr: libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}})
	require.Zero(t, errno)
	cap := libibverbs.QpCap{MaxSendWr: 3, MaxRecvWr: 5, MaxSendSge: 1, MaxRecvSge: 1}
	t.Run("ibv_create_qp", func(t *testing.T) {
		a := &libibverbs.QpInitAttr{SendCq: cq, RecvCq: new(libibverbs.Cq), Srq: srq, Cap: cap, QpType: libibverbs.IBV_QPT_RC}
		before := *a
		_, errno := verbs.CreateQp(r.pd, a)
		require.Equal(t, syscall.EINVAL, errno)
		require.Equal(t, before, *a)
		a.RecvCq = cq
		_, errno = verbs.CreateQp(r.pd, a)
		require.Zero(t, errno)
		require.Zero(t, a.Cap.MaxRecvWr, "of a shared receive queue")
	})
	t.Run("ibv_create_qp_ex", func(t *testing.T) {
		a := &libibverbs.QpInitAttrEx{
			SendCq: cq, RecvCq: new(libibverbs.Cq), Srq: srq, Cap: cap, QpType: libibverbs.IBV_QPT_RC,
			CompMask: libibverbs.IBV_QP_INIT_ATTR_PD, Pd: r.pd, SendOpsFlags: 1 << 60, // which the mask leaves out
		}
		before := *a
		_, errno := verbs.CreateQpEx(r.c, a)
		require.Equal(t, syscall.EINVAL, errno)
		require.Equal(t, before, *a)
	})
	t.Run("rdma_create_qp_ex", func(t *testing.T) {
		id := newProgram(t).id(tcp)
		require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.MustParseAddrPort("127.0.0.1:0"))))
		defer destroy(t, id)
		a := &libibverbs.QpInitAttrEx{Cap: cap, QpType: libibverbs.IBV_QPT_RC}
		a.Cap.MaxSendSge = 1 << 20
		before := *a
		require.Equal(t, syscall.EINVAL, cm.CreateQpEx(id, a))
		require.Equal(t, before, *a)
		a.Cap.MaxSendSge = 1
		require.Zero(t, cm.CreateQpEx(id, a))
		require.NotNil(t, a.SendCq)
	})
	t.Run("rdma_create_qp of another type", func(t *testing.T) {
		id := newProgram(t).id(udp)
		require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.MustParseAddrPort("127.0.0.1:0"))))
		defer destroy(t, id)
		a := &libibverbs.QpInitAttr{Cap: cap, QpType: libibverbs.IBV_QPT_RC}
		before := *a
		require.Equal(t, syscall.EINVAL, cm.CreateQp(id, nil, a))
		require.Equal(t, before, *a)
		x := &libibverbs.QpInitAttrEx{Cap: cap, QpType: libibverbs.IBV_QPT_RC}
		beforeX := *x
		require.Equal(t, syscall.EINVAL, cm.CreateQpEx(id, x))
		require.Equal(t, beforeX, *x)
	})
	t.Run("rdma_create_srq_ex", func(t *testing.T) {
		id := newProgram(t).id(tcp)
		require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.MustParseAddrPort("127.0.0.1:0"))))
		defer destroy(t, id)
		a := &libibverbs.SrqInitAttrEx{
			Attr: libibverbs.SrqAttr{MaxWr: 4, MaxSge: 1 << 20}, SrqType: libibverbs.IBV_SRQT_XRC,
			CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE,
		}
		before := *a
		require.Equal(t, syscall.EINVAL, cm.CreateSrqEx(id, a))
		require.Equal(t, before, *a)
		a.Attr.MaxSge = 1
		require.Zero(t, cm.CreateSrqEx(id, a))
		require.NotNil(t, a.Cq)
		cm.DestroySrq(id)
	})
}

// Programs that were compiled with old headers have shorter structs. The device
// reads and writes nothing behind them.
func TestShortStructs(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	r := newRig(t)
	cq := r.cq(4)
	attr := short[libibverbs.QpAttr](t, unsafe.Offsetof(libibverbs.QpAttr{}.RateLimit))
	init := short[libibverbs.QpInitAttrEx](t, unsafe.Offsetof(libibverbs.QpInitAttrEx{}.CreateFlags))
	init.SendCq, init.RecvCq, init.QpType, init.CompMask, init.Pd = cq, cq, libibverbs.IBV_QPT_RC, libibverbs.IBV_QP_INIT_ATTR_PD, r.pd
	q, errno := verbs.CreateQpEx(r.c, init)
	require.Zero(t, errno)
	attr.QpState, attr.PortNum = libibverbs.IBV_QPS_INIT, 1
	require.Zero(t, verbs.ModifyQp(q, attr,
		libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_PKEY_INDEX|libibverbs.IBV_QP_PORT|libibverbs.IBV_QP_ACCESS_FLAGS))
	attr.QpState = libibverbs.IBV_QPS_RESET
	require.Zero(t, verbs.QueryQp(q, attr, libibverbs.IBV_QP_STATE, new(libibverbs.QpInitAttr)))
	require.Equal(t, libibverbs.IBV_QPS_INIT, attr.QpState)
	require.Zero(t, verbs.DestroyQp(q))

	shared := short[libibverbs.SrqInitAttrEx](t, unsafe.Offsetof(libibverbs.SrqInitAttrEx{}.TmCap))
	shared.Attr, shared.CompMask, shared.Pd = libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1}, libibverbs.IBV_SRQ_INIT_ATTR_PD, r.pd
	s, errno := verbs.CreateSrqEx(r.c, shared)
	require.Zero(t, errno)
	require.Zero(t, verbs.DestroySrq(s))

	id := newProgram(t).id(tcp)
	require.NoError(t, librdmacm.BindAddr(id, sockaddr(netip.MustParseAddrPort("127.0.0.1:0"))))
	defer destroy(t, id)
	init.SendCq, init.RecvCq, init.CompMask, init.Pd = nil, nil, 0, nil
	init.Cap = libibverbs.QpCap{MaxSendWr: 1, MaxRecvWr: 1, MaxSendSge: 1, MaxRecvSge: 1}
	require.Zero(t, cm.CreateQpEx(id, init))
	attr.QpState = libibverbs.IBV_QPS_INIT
	var mask libibverbs.QpAttrMask
	require.Zero(t, cm.InitQpAttr(id, attr, &mask))
}

// short returns a struct of which the program has only the first size bytes:
// the page behind them cannot be accessed.
func short[T any](t *testing.T, size uintptr) *T {
	page := os.Getpagesize()
	pages, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Munmap(pages) })
	require.NoError(t, syscall.Mprotect(pages[page:], syscall.PROT_NONE))
	return (*T)(unsafe.Pointer(&pages[uintptr(page)-size]))
}
