// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package calls

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"

	"github.com/verbena-go/verbena/ibverbs"

	verbs "github.com/verbena-go/verbena/generated/libibverbs"
	cm "github.com/verbena-go/verbena/generated/librdmacm"
)

// rereg: 0, or a code that says which step of ibv_rereg_mr failed.
func TestRereg(t *testing.T) {
	l := library(t, "ibv_rereg_mr")
	mr := (*verbs.Mr)(l.Object("ibv_rereg_mr"))
	for _, tt := range []struct {
		result   int64
		errno    int32
		is       syscall.Errno
		unusable bool
		text     string // "" for success
	}{
		{0, 0, 0, false, ""},
		{0, enomem, 0, false, ""},
		{-1, 0, syscall.EINVAL, false, "ibv_rereg_mr: invalid argument (bad input)"},
		{-1, eopnotsupp, syscall.EOPNOTSUPP, false, "ibv_rereg_mr: operation not supported (bad input)"},
		{-2, enomem, syscall.ENOMEM, false, "ibv_rereg_mr: cannot allocate memory (fork protection of the new memory)"},
		{-3, enomem, syscall.ENOMEM, false, "ibv_rereg_mr: cannot allocate memory (fork protection of the old memory)"},
		{-4, enomem, syscall.ENOMEM, true, "ibv_rereg_mr: cannot allocate memory (command, the region is unusable)"},
		{-4, 0, syscall.EIO, true, "ibv_rereg_mr: input/output error (command, the region is unusable)"},
		{-5, enomem, syscall.ENOMEM, true, "ibv_rereg_mr: cannot allocate memory (command and fork protection, the region is unusable)"},
		{-6, enomem, syscall.ENOMEM, true, "ibv_rereg_mr: cannot allocate memory (code -6)"},
	} {
		t.Run(fmt.Sprintf("%d,%d", tt.result, tt.errno), func(t *testing.T) {
			l.Returns(tt.result, tt.errno)
			err := verbs.ReregMr(mr, 0, nil, nil, 0, 0)
			if tt.text == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tt.text)
			require.ErrorIs(t, err, tt.is)
			var e *ibverbs.ReregError
			require.ErrorAs(t, err, &e)
			require.EqualValues(t, tt.result, e.Code)
			require.Equal(t, tt.unusable, e.Unusable())
		})
	}
}

// eai: 0, an EAI code, or -1 with errno.
func TestEAI(t *testing.T) {
	l := library(t, "rdma_getaddrinfo")
	for _, tt := range []struct {
		result int64
		errno  int32
		code   int           // of the *rdmacm.AddrInfoError, or 0: it is a *ibverbs.Error
		is     syscall.Errno // 0: none
		text   string        // "" for success
	}{
		{0, 0, 0, 0, ""},
		{0, enodev, 0, 0, ""},
		{-1, enodev, 0, syscall.ENODEV, "rdma_getaddrinfo: no such device: no RDMA device"},
		{-1, -enodev, 0, syscall.ENODEV, "rdma_getaddrinfo: no such device: no RDMA device"},
		{-1, 0, -1, syscall.EINVAL, "rdma_getaddrinfo: bad flags"}, // EAI_BADFLAGS
		{-2, 0, -2, syscall.ENOENT, "rdma_getaddrinfo: unknown host or service"},
		{-2, enodev, -2, syscall.ENOENT, "rdma_getaddrinfo: unknown host or service"},
		{-10, 0, -10, syscall.ENOMEM, "rdma_getaddrinfo: out of memory"},
		{-11, enomem, 0, syscall.ENOMEM, "rdma_getaddrinfo: cannot allocate memory"}, // EAI_SYSTEM
		{-11, 0, 0, syscall.EIO, "rdma_getaddrinfo: input/output error"},
		{-105, enodev, -105, 0, "rdma_getaddrinfo: name resolution failed with code -105"},
	} {
		t.Run(fmt.Sprintf("%d,%d", tt.result, tt.errno), func(t *testing.T) {
			l.Returns(tt.result, tt.errno)
			_, err := cm.Getaddrinfo("peer", "7471", nil)
			if tt.text == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.text) // a hint may follow
			if tt.is != 0 {
				require.ErrorIs(t, err, tt.is)
			}
			if tt.code == 0 {
				var e *ibverbs.Error
				require.ErrorAs(t, err, &e)
				return
			}
			var e *rdmacm.AddrInfoError
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.code, e.Code)
		})
	}
}
