// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
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
