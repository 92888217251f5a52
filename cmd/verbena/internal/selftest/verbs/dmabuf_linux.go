// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
)

// dmaBuffer makes a DMA buffer of this process's memory with Linux's udmabuf.
// It is closed at the end of the check.
func dmaBuffer(t *check.T, size int) (b []byte, fd int, err error) {
	device, err := os.OpenFile("/dev/udmabuf", os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer device.Close()
	file, err := sealedFile(size)
	if err != nil {
		return nil, 0, err
	}
	t.Close(file)
	request := struct { // struct udmabuf_create
		memfd, flags uint32
		offset, size uint64
	}{memfd: uint32(file.Fd()), flags: 1, size: uint64(size)} // UDMABUF_FLAGS_CLOEXEC
	made, _, errno := syscall.Syscall(syscall.SYS_IOCTL, device.Fd(), createRequest(), uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(file)
	if errno != 0 {
		return nil, 0, errno
	}
	t.Close(os.NewFile(made, "udmabuf"))
	b, err = syscall.Mmap(int(file.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, 0, err
	}
	t.Close(check.Closer(func() error { return syscall.Munmap(b) }))
	return b, int(made), nil
}

// sealedFile makes a file in memory that cannot shrink, as udmabuf requires.
func sealedFile(size int) (*os.File, error) {
	name, err := syscall.BytePtrFromString("verbena")
	if err != nil {
		return nil, err
	}
	const closeOnExec, allowSealing = 1, 2
	fd, _, errno := syscall.Syscall(memfdCreate(), uintptr(unsafe.Pointer(name)), closeOnExec|allowSealing, 0)
	if errno != 0 {
		return nil, errno
	}
	f := os.NewFile(fd, "memory")
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	const addSeals, shrink = 1033, 2
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, fd, addSeals, shrink); errno != 0 {
		return nil, errno
	}
	return f, nil
}

// memfdCreate returns the number of the system call memfd_create, which package
// syscall does not have for every processor.
func memfdCreate() uintptr {
	numbers := map[string]uintptr{"amd64": 319, "ppc64le": 360, "s390x": 350}
	if n := numbers[runtime.GOARCH]; n != 0 {
		return n
	}
	return 279 // arm64, loong64, riscv64
}

// createRequest returns the number of the ioctl UDMABUF_CREATE: _IOW('u', 0x42,
// struct udmabuf_create), whose bits for the direction depend on the processor.
func createRequest() uintptr {
	const size, group, number = 24, 'u', 0x42
	request := uintptr(size<<16 | group<<8 | number)
	if strings.HasPrefix(runtime.GOARCH, "ppc64") {
		return request | 4<<29
	}
	return request | 1<<30
}
