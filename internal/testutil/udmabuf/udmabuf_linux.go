// SPDX-License-Identifier: Apache-2.0

package udmabuf

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

const device = "/dev/udmabuf"

// Require skips the test if the system has no udmabuf. If the environment
// variable VERBENA_REQUIRE_UDMABUF is 1, it makes the test fail instead.
func Require(t testing.TB) {
	t.Helper()
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	switch {
	case err == nil:
		require.NoError(t, f.Close())
	case os.Getenv("VERBENA_REQUIRE_UDMABUF") == "1":
		t.Fatalf("VERBENA_REQUIRE_UDMABUF is 1, but there are no DMA buffers to test with: %v", err)
	default:
		t.Skipf("needs a kernel with CONFIG_UDMABUF, such as the VM's newest (make gpu): %v", err)
	}
}

// Buffer is a DMA buffer.
type Buffer struct {
	FD    int
	Bytes []byte // content of the buffer: a mapping of its memory
}

// New creates a buffer of size bytes, a multiple of the page size. It is closed
// at the end of the test.
func New(t testing.TB, size int) *Buffer {
	t.Helper()
	memfd := memfd(t, size)
	memory, err := syscall.Mmap(memfd, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(memory)) })

	f, err := os.OpenFile(device, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	request := struct { // struct udmabuf_create
		memfd, flags uint32
		offset, size uint64
	}{memfd: uint32(memfd), flags: 1, size: uint64(size)} // UDMABUF_FLAGS_CLOEXEC
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), createRequest(), uintptr(unsafe.Pointer(&request)))
	require.Zero(t, errno, "UDMABUF_CREATE")
	t.Cleanup(func() { require.NoError(t, syscall.Close(int(fd))) })
	return &Buffer{int(fd), memory}
}

// memfd returns the descriptor of memory that cannot shrink, as udmabuf
// requires.
func memfd(t testing.TB, size int) int {
	t.Helper()
	name := []byte("verbena\x00")
	const allowSealing, addSeals, sealShrink = 2, 1033, 2
	fd, _, errno := syscall.Syscall(memfdCreate(), uintptr(unsafe.Pointer(&name[0])), allowSealing, 0)
	require.Zero(t, errno, "memfd_create")
	t.Cleanup(func() { require.NoError(t, syscall.Close(int(fd))) })
	require.NoError(t, syscall.Ftruncate(int(fd), int64(size)))
	_, _, errno = syscall.Syscall(syscall.SYS_FCNTL, fd, addSeals, sealShrink)
	require.Zero(t, errno, "F_ADD_SEALS")
	return int(fd)
}

// createRequest returns the ioctl number UDMABUF_CREATE, in which "write" has
// another code on PowerPC.
func createRequest() uintptr {
	if strings.HasPrefix(runtime.GOARCH, "ppc64") {
		return 0x80187542
	}
	return 0x40187542
}

// memfdCreate returns the number of memfd_create, which package syscall does
// not define.
func memfdCreate() uintptr {
	switch runtime.GOARCH {
	case "amd64":
		return 319
	case "ppc64le":
		return 360
	case "s390x":
		return 350
	}
	return 279
}
