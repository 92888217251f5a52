// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/testutil/udmabuf"
)

// What is wrong with the descriptor or with the access is found without a DMA
// buffer.
func TestRegDmabufMrRefused(t *testing.T) {
	r := newRig(t)
	file, err := os.Create(t.TempDir() + "/file")
	require.NoError(t, err)
	defer file.Close()
	require.NoError(t, file.Truncate(1<<20))
	for name, tt := range map[string]struct {
		fd     int32
		access libibverbs.AccessFlags
		want   syscall.Errno
	}{
		"a file":                 {int32(file.Fd()), 0, syscall.EINVAL},
		"no descriptor":          {-1, 0, syscall.EBADF},
		"a descriptor not open":  {1 << 20, 0, syscall.EBADF},
		"binding of windows":     {int32(file.Fd()), libibverbs.IBV_ACCESS_MW_BIND, syscall.EINVAL},
		"on demand":              {int32(file.Fd()), libibverbs.IBV_ACCESS_ON_DEMAND, syscall.EINVAL},
		"what a device may lack": {int32(file.Fd()), libibverbs.IBV_ACCESS_RELAXED_ORDERING, syscall.EINVAL},
	} {
		m, errno := verbs.RegDmabufMr(r.pd, 0, 4096, 0, tt.fd, tt.access)
		require.Equal(t, tt.want, errno, name)
		require.Nil(t, m, name)
	}
}

// The device gives everything back that it has of a buffer, whether the region
// could be made or not, and also when the program has closed the device only.
func TestDmabufIsGivenBack(t *testing.T) {
	udmabuf.Require(t)
	page := os.Getpagesize()
	buffer := udmabuf.New(t, 4*page)
	descriptors := func() (n int) {
		files, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, file := range files {
			if target, err := os.Readlink("/proc/self/fd/" + file.Name()); err == nil && strings.HasPrefix(target, "/dmabuf:") {
				n++
			}
		}
		return n
	}
	before := descriptors()
	require.Equal(t, 1, before)
	t.Cleanup(func() { require.Equal(t, before, descriptors(), "after the device was closed") })
	r := newRig(t)
	const access = libibverbs.IBV_ACCESS_LOCAL_WRITE
	fd := int32(buffer.FD)
	m, errno := verbs.RegDmabufMr(r.pd, uint64(page)+8, uint64(page), 1<<32+8, fd, access)
	require.Zero(t, errno)
	require.EqualValues(t, page, m.Length)
	require.EqualValues(t, page+8, uintptr(m.Addr))
	require.Equal(t, before+1, descriptors())

	code, errno := verbs.ReregMr(m, libibverbs.IBV_REREG_MR_CHANGE_ACCESS, nil, 0, 0, 0)
	require.Equal(t, syscall.EOPNOTSUPP, errno)
	require.EqualValues(t, libibverbs.IBV_REREG_MR_ERR_CMD, code)
	require.Zero(t, verbs.DeregMr(m))
	require.Equal(t, before, descriptors())

	_, errno = verbs.RegDmabufMr(r.pd, 8, 8, 0, fd, access) // at another place in a page
	require.Equal(t, syscall.EINVAL, errno)
	_, errno = verbs.RegDmabufMr(nil, 0, 8, 0, fd, access)
	require.Equal(t, syscall.EINVAL, errno)
	require.Equal(t, before, descriptors())

	a := alloc[libibverbs.MrInitAttr]()
	defer free(a)
	*a = libibverbs.MrInitAttr{
		Length: 8, Access: access, Iova: 1<<32 + 8, Fd: fd, FdOffset: 8,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_FD | libibverbs.IBV_REG_MR_MASK_FD_OFFSET | libibverbs.IBV_REG_MR_MASK_IOVA),
	}
	_, errno = verbs.RegMrEx(r.pd, a)
	require.Zero(t, errno)
	require.Equal(t, before+1, descriptors())
}
