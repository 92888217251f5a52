// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// xrcd opens the XRC domain of a file.
func (r *rig) xrcd(f *os.File, flags int32) (*libibverbs.Xrcd, error) {
	a := alloc[libibverbs.XrcdInitAttr]()
	defer free(a)
	*a = libibverbs.XrcdInitAttr{
		CompMask: libibverbs.IBV_XRCD_INIT_ATTR_FD | libibverbs.IBV_XRCD_INIT_ATTR_OFLAGS, Fd: int32(f.Fd()), Oflags: flags,
	}
	return libibverbs.OpenXrcd(r.c, a)
}

// A domain keeps its file open: after the program has closed and removed the
// file, no other file gets the inode that names the domain.
func TestXRCDKeepsFile(t *testing.T) {
	r := newRig(t)
	folder := t.TempDir()
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(folder, name))
		require.NoError(t, err)
		return f
	}
	f := create("domain")
	other := create("other")
	defer other.Close()
	files := descriptors(t)
	x, err := r.xrcd(f, syscall.O_CREAT)
	require.NoError(t, err)
	again, err := r.xrcd(f, syscall.O_CREAT)
	require.NoError(t, err)
	_, err = r.xrcd(f, syscall.O_CREAT|syscall.O_EXCL)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = r.xrcd(other, 0)
	require.ErrorIs(t, err, syscall.EAGAIN)
	require.Equal(t, files+2, descriptors(t), "the domain holds its file and the claim, once")
	require.NoError(t, f.Close())
	require.NoError(t, os.Remove(f.Name()))
	for n := range 32 {
		f := create(strconv.Itoa(n))
		_, err := r.xrcd(f, 0)
		require.ErrorIs(t, err, syscall.EAGAIN, "file %d names no domain", n)
		require.NoError(t, f.Close())
	}
	require.NoError(t, libibverbs.CloseXrcd(again))
	require.Equal(t, files+1, descriptors(t), "the program has closed its descriptor, and the domain is still open")
	require.NoError(t, libibverbs.CloseXrcd(x))
	require.Equal(t, files-1, descriptors(t))
}

// A domain leaves the locks of the program on its file alone.
func TestXRCDKeepsLocks(t *testing.T) {
	r := newRig(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer f.Close()
	other, err := os.OpenFile(f.Name(), os.O_RDWR, 0) // closed last, as that ends the locks
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}))
	locked := func(when string) {
		const get = 36 // F_OFD_GETLK, for which a lock of this process is another's
		l := syscall.Flock_t{Type: syscall.F_WRLCK}
		require.NoError(t, syscall.FcntlFlock(other.Fd(), get, &l))
		require.EqualValues(t, syscall.F_WRLCK, l.Type, when)
	}
	locked("before")
	x, err := r.xrcd(f, syscall.O_CREAT)
	require.NoError(t, err)
	require.NoError(t, libibverbs.CloseXrcd(x))
	locked("after the domain")
	_, err = withDescriptors(t, 1, func() (*libibverbs.Xrcd, error) { return r.xrcd(f, syscall.O_CREAT) })
	require.ErrorIs(t, err, syscall.EMFILE)
	locked("after a domain that could not be created")
}

// A domain that cannot be created for lack of descriptors leaves none open.
func TestXRCDWithoutDescriptors(t *testing.T) {
	r := newRig(t)
	f, err := os.Create(filepath.Join(t.TempDir(), "domain"))
	require.NoError(t, err)
	defer f.Close()
	files := descriptors(t)
	for free := range uint64(3) { // one for the file, two for the claim
		_, err := withDescriptors(t, free, func() (*libibverbs.Xrcd, error) { return r.xrcd(f, syscall.O_CREAT) })
		require.ErrorIs(t, err, syscall.EMFILE, "%d descriptors", free)
		require.Equal(t, files, descriptors(t), "%d descriptors", free)
		_, err = r.xrcd(f, 0)
		require.ErrorIs(t, err, syscall.EAGAIN, "%d descriptors", free)
	}
	x, err := r.xrcd(f, syscall.O_CREAT)
	require.NoError(t, err)
	require.NoError(t, libibverbs.CloseXrcd(x))
	require.Equal(t, files, descriptors(t))
}

// withDescriptors calls open while the process can open only so many files.
func withDescriptors(t *testing.T, free uint64, open func() (*libibverbs.Xrcd, error)) (*libibverbs.Xrcd, error) {
	t.Helper()
	lowest, err := syscall.Dup(0)
	require.NoError(t, err)
	require.NoError(t, syscall.Close(lowest))
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	defer func() { require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)) }()
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(lowest) + free, Max: limit.Max}))
	return open()
}
