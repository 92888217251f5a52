// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"unsafe"
)

// rocm is AMD's HIP runtime, and the HSA runtime below it.
type rocm struct {
	init          func(flags uint32) int32
	malloc        func(address *unsafe.Pointer, size uintptr) int32
	mallocManaged func(address *unsafe.Pointer, size uintptr, flags uint32) int32
	freeMemory    func(address unsafe.Pointer) int32
	memcpy        func(to, from unsafe.Pointer, size uintptr, kind int32) int32
	getErrorName  func(result int32) *byte

	hsaInit      func() int32
	exportDMABuf func(address unsafe.Pointer, size uintptr, fd *int32, offset *uint64) int32
}

// Constants of hip_runtime_api.h.
const (
	hipHostToDevice = 1
	hipDeviceToHost = 2
	hipAttachGlobal = 1 // hipMemAttachGlobal: for every stream and processor
)

func openROCm() (*rocm, error) {
	r := &rocm{}
	err := load("libamdhip64.so", "AMD's ROCm", map[string]any{
		"hipInit": &r.init, "hipMalloc": &r.malloc, "hipMallocManaged": &r.mallocManaged, "hipFree": &r.freeMemory, "hipMemcpy": &r.memcpy, "hipGetErrorName": &r.getErrorName,
	})
	if err == nil {
		err = load("libhsa-runtime64.so.1", "AMD's ROCm", map[string]any{"hsa_init": &r.hsaInit, "hsa_amd_portable_export_dmabuf": &r.exportDMABuf})
	}
	if err != nil {
		return nil, err
	}
	if err := r.check("hipInit", r.init(0)); err != nil {
		return nil, err
	}
	if status := r.hsaInit(); status != 0 {
		return nil, fmt.Errorf("hsa_init: status %#x", status)
	}
	return r, nil
}

func (r *rocm) name() string { return "an AMD GPU" }

func (r *rocm) check(op string, result int32) error {
	if result == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", op, text(r.getErrorName(result)))
}

func (r *rocm) alloc(size int) (address unsafe.Pointer, err error) {
	return address, r.check("hipMalloc", r.malloc(&address, wholePages(size)))
}

func (r *rocm) allocManaged(size int) (address unsafe.Pointer, err error) {
	return address, r.check("hipMallocManaged", r.mallocManaged(&address, wholePages(size), hipAttachGlobal))
}

func (r *rocm) free(address unsafe.Pointer) error { return r.check("hipFree", r.freeMemory(address)) }

func (r *rocm) put(address unsafe.Pointer, from []byte) error {
	return r.check("hipMemcpy", r.memcpy(address, unsafe.Pointer(&from[0]), uintptr(len(from)), hipHostToDevice))
}

func (r *rocm) get(into []byte, address unsafe.Pointer) error {
	return r.check("hipMemcpy", r.memcpy(unsafe.Pointer(&into[0]), address, uintptr(len(into)), hipDeviceToHost))
}

func (r *rocm) export(address unsafe.Pointer, size int) (fd int, offset uint64, err error) {
	var handle int32
	if status := r.exportDMABuf(address, uintptr(size), &handle, &offset); status != 0 {
		return 0, 0, fmt.Errorf("hsa_amd_portable_export_dmabuf: status %#x", status)
	}
	return int(handle), offset, nil
}
