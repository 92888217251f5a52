// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// memory is memory that this process shares with another process. Its zero
// value is not valid, since 0 may be a descriptor; noMemory stands for no
// memory.
type memory struct {
	bytes []byte // the memory, mapped into this process; nil: none
	fd    int    // descriptor, or -1 if it is closed
}

var noMemory = memory{fd: -1}

// memfdCreate has the number of memfd_create, which package syscall does not
// define for all architectures.
var memfdCreate = map[string]uintptr{
	"amd64": 319, "arm64": 279, "loong64": 279, "ppc64le": 360, "riscv64": 279, "s390x": 350,
}

const (
	memfdCloexec      = 1
	memfdAllowSealing = 2

	addSeals   = 1033 // F_ADD_SEALS
	getSeals   = 1034 // F_GET_SEALS
	sealSeal   = 1
	sealShrink = 2
	sealGrow   = 4
)

// newMemory returns new memory that another process can map through its
// descriptor. The memory is sealed, so that no process can shrink it.
func newMemory(size int) (memory, error) {
	number, ok := memfdCreate[runtime.GOARCH]
	if !ok {
		return noMemory, syscall.ENOSYS
	}
	name := [...]byte{'v', 'e', 'r', 'b', 'e', 'n', 'a', 0}
	n, _, e := syscall.Syscall(number, uintptr(unsafe.Pointer(&name)), memfdCloexec|memfdAllowSealing, 0)
	if e != 0 {
		return noMemory, os.NewSyscallError("memfd_create", e)
	}
	fd := int(n)
	err := syscall.Ftruncate(fd, int64(size))
	if err == nil {
		_, err = control(fd, addSeals, sealSeal|sealShrink|sealGrow)
	}
	if err != nil {
		syscall.Close(fd)
		return noMemory, err
	}
	return mapMemory(fd, size)
}

// openMemory maps the memory behind a descriptor, and takes ownership of the
// descriptor. It fails if the memory is not size bytes long or can shrink.
func openMemory(fd, size int) (memory, error) {
	var status syscall.Stat_t
	seals, err := control(fd, getSeals, 0)
	if err == nil {
		err = syscall.Fstat(fd, &status)
	}
	if err == nil && (status.Size != int64(size) || seals&sealShrink == 0) {
		err = fmt.Errorf("shared memory of %d bytes refused: want %d bytes that are sealed against shrinking: %w", status.Size, size, syscall.EINVAL)
	}
	if err != nil {
		syscall.Close(fd)
		return noMemory, err
	}
	return mapMemory(fd, size)
}

// mapMemory maps the memory behind a descriptor.
func mapMemory(fd, size int) (memory, error) {
	b, err := syscall.Mmap(fd, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		syscall.Close(fd)
		return noMemory, os.NewSyscallError("mmap", err)
	}
	return memory{b, fd}, nil
}

// close unmaps the memory in this process. Other processes keep their mappings.
func (m *memory) close() {
	m.closeFD()
	if m.bytes != nil {
		syscall.Munmap(m.bytes)
		m.bytes = nil
	}
}

// closeFD closes the descriptor. The mapping stays.
func (m *memory) closeFD() {
	if m.fd >= 0 {
		syscall.Close(m.fd)
		m.fd = -1
	}
}

// control calls fcntl(2).
func control(fd int, command, arg uintptr) (uintptr, error) {
	n, _, e := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), command, arg)
	if e != 0 {
		return 0, os.NewSyscallError("fcntl", e)
	}
	return n, nil
}

// pointer returns a pointer to the number at an offset in the memory.
func pointer[T uint32 | uint64](m memory, offset uintptr) *T {
	return (*T)(unsafe.Pointer(&m.bytes[offset : offset+unsafe.Sizeof(*new(T))][0]))
}
