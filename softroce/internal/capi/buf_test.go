// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// A buffer goes with the protection domain that it was allocated for, and is no
// DMA buffer.
func TestBuf(t *testing.T) {
	r := newRig(t)
	other, err := libibverbs.AllocPd(r.c)
	require.NoError(t, err)
	const size, access = 8192, libibverbs.IBV_ACCESS_LOCAL_WRITE
	var buf *libibverbs.Buf
	memory, errno := verbs.AllocBuf(r.pd, size, &buf)
	require.Zero(t, errno)
	addr := uintptr(memory)

	_, errno = verbs.RegBufMr(other, buf, addr, size, access)
	require.Equal(t, syscall.EINVAL, errno)
	_, errno = verbs.RegBufMr(r.pd, buf, addr, size, access)
	require.Zero(t, errno)
	_, errno = verbs.RegBufMr(r.pd, buf, addr+1, size, access)
	require.Equal(t, syscall.EINVAL, errno)

	_, errno = verbs.ExportBufDmabufFd(buf)
	require.Equal(t, syscall.ENODATA, errno)
	verbs.FreeBuf(buf)
	_, errno = verbs.ExportBufDmabufFd(buf)
	require.Equal(t, syscall.EINVAL, errno)
}

func TestRegMrEx(t *testing.T) {
	r := newRig(t)
	var buf *libibverbs.Buf
	memory, errno := verbs.AllocBuf(r.pd, 4096, &buf)
	require.Zero(t, errno)
	defer verbs.FreeBuf(buf)
	const (
		iova, addr, inBuf = libibverbs.IBV_REG_MR_MASK_IOVA, libibverbs.IBV_REG_MR_MASK_ADDR, libibverbs.IBV_REG_MR_MASK_BUF
		fd, fdOffset      = libibverbs.IBV_REG_MR_MASK_FD, libibverbs.IBV_REG_MR_MASK_FD_OFFSET
		elsewhere         = 1 << 40
	)
	offset := uint64(uintptr(memory)) % 4096
	for name, tt := range map[string]struct {
		mask libibverbs.MrInitAttrMask
		set  func(a *libibverbs.MrInitAttr)
		want syscall.Errno
	}{
		"memory":                              {mask: addr},
		"from an address on":                  {mask: addr | iova},
		"elsewhere in a page":                 {addr | iova, func(a *libibverbs.MrInitAttr) { a.Iova++ }, syscall.EINVAL},
		"an address that the mask leaves out": {addr, func(a *libibverbs.MrInitAttr) { a.Iova++ }, 0},
		"in a buffer":                         {mask: addr | inBuf},
		"past the buffer":                     {addr | inBuf, func(a *libibverbs.MrInitAttr) { a.Length++ }, syscall.EINVAL},
		"no buffer":                           {addr | inBuf, func(a *libibverbs.MrInitAttr) { a.Buf = nil }, syscall.EINVAL},
		"no memory":                           {mask: iova, want: syscall.EINVAL},
		"not mapped":                          {addr, func(a *libibverbs.MrInitAttr) { a.Addr = nil }, syscall.EFAULT},
		"memory and a file":                   {mask: addr | iova | fd | fdOffset, want: syscall.EINVAL},
		"a file without an address":           {mask: fd | fdOffset, want: syscall.EINVAL},
		"a file without an offset":            {mask: iova | fd, want: syscall.EINVAL},
		"an offset without a file":            {mask: addr | fdOffset, want: syscall.EINVAL},
		"no DMA buffer":                       {mask: iova | fd | fdOffset, want: syscall.EINVAL},
		"no handle":                           {mask: addr | libibverbs.IBV_REG_MR_MASK_DMAH, want: syscall.EINVAL},
		"a mask to come":                      {mask: addr | 1<<20, want: syscall.EOPNOTSUPP},
		"on demand": {addr, func(a *libibverbs.MrInitAttr) {
			a.Access |= libibverbs.IBV_ACCESS_ON_DEMAND
		}, 0},
		"in huge pages": {addr, func(a *libibverbs.MrInitAttr) {
			a.Access |= libibverbs.IBV_ACCESS_ON_DEMAND | libibverbs.IBV_ACCESS_HUGETLB
		}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			a := alloc[libibverbs.MrInitAttr]()
			defer free(a)
			*a = libibverbs.MrInitAttr{
				Length: 4096, Access: libibverbs.IBV_ACCESS_LOCAL_WRITE, CompMask: uint64(tt.mask),
				Iova: elsewhere + offset, Addr: memory, Buf: buf,
			}
			if tt.set != nil {
				tt.set(a)
			}
			m, errno := verbs.RegMrEx(r.pd, a)
			require.Equal(t, tt.want, errno)
			if tt.want != 0 {
				require.Nil(t, m)
				return
			}
			require.EqualValues(t, 4096, m.Length)
			require.Equal(t, memory, unsafe.Pointer(m.Addr))
			require.Zero(t, verbs.DeregMr(m))
		})
	}
	_, errno = verbs.RegMrEx(r.pd, nil)
	require.Equal(t, syscall.EINVAL, errno)
}
