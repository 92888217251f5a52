// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"net/netip"
	"syscall"
	"testing"

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
		require.Equal(t, syscall.EINVAL, createCMQPEx(id, a))
		require.Equal(t, before, *a)
		a.Cap.MaxSendSge = 1
		require.Zero(t, createCMQPEx(id, a))
		require.NotNil(t, a.SendCq)
	})
}
