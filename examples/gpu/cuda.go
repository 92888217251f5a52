// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// cuda is NVIDIA's driver library.
type cuda struct {
	device      int32
	context     unsafe.Pointer
	dmabuf      bool // whether this GPU's memory can be exported
	description string

	init              func(flags uint32) int32
	deviceGet         func(device *int32, ordinal int32) int32
	deviceGetName     func(name *byte, size, device int32) int32
	deviceGetAttr     func(value *int32, attribute, device int32) int32
	primaryCtxRetain  func(context *unsafe.Pointer, device int32) int32
	ctxSetCurrent     func(context unsafe.Pointer) int32
	memAlloc          func(address *unsafe.Pointer, size uintptr) int32
	memAllocManaged   func(address *unsafe.Pointer, size uintptr, flags uint32) int32
	memFree           func(address unsafe.Pointer) int32
	memcpyHtoD        func(to unsafe.Pointer, from *byte, size uintptr) int32
	memcpyDtoH        func(to *byte, from unsafe.Pointer, size uintptr) int32
	pointerSetAttr    func(value *uint32, attribute int32, address unsafe.Pointer) int32
	memGetRangeHandle func(handle *int32, address, size uintptr, kind int32, flags uint64) int32
	getErrorName      func(result int32, name **byte) int32
}

// Constants of cuda.h.
const (
	cudaDMABufSupported = 124 // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
	cudaSyncMemops      = 6   // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
	cudaDMABufFD        = 1   // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
	cudaAttachGlobal    = 1   // CU_MEM_ATTACH_GLOBAL: for every stream and processor
)

func openCUDA() (*cuda, error) {
	c := &cuda{}
	err := load("libcuda.so.1", "NVIDIA's driver", map[string]any{
		"cuInit": &c.init, "cuDeviceGet": &c.deviceGet, "cuDeviceGetName": &c.deviceGetName, "cuDeviceGetAttribute": &c.deviceGetAttr,
		"cuDevicePrimaryCtxRetain": &c.primaryCtxRetain, "cuCtxSetCurrent": &c.ctxSetCurrent,
		"cuMemAlloc_v2": &c.memAlloc, "cuMemAllocManaged": &c.memAllocManaged, "cuMemFree_v2": &c.memFree, "cuMemcpyHtoD_v2": &c.memcpyHtoD, "cuMemcpyDtoH_v2": &c.memcpyDtoH,
		"cuPointerSetAttribute": &c.pointerSetAttr, "cuMemGetHandleForAddressRange": &c.memGetRangeHandle, // CUDA 11.7
		"cuGetErrorName": &c.getErrorName,
	})
	if err != nil {
		return nil, err
	}
	if err := c.check("cuInit", c.init(0)); err != nil {
		return nil, err
	}
	if err := c.check("cuDeviceGet", c.deviceGet(&c.device, 0)); err != nil {
		return nil, err
	}
	name := make([]byte, 256)
	if err := c.check("cuDeviceGetName", c.deviceGetName(&name[0], int32(len(name)), c.device)); err != nil {
		return nil, err
	}
	c.description = text(&name[0])
	var dmabuf int32 // an error means that the driver is too old to know
	c.dmabuf = c.deviceGetAttr(&dmabuf, cudaDMABufSupported, c.device) == 0 && dmabuf == 1
	if err := c.check("cuDevicePrimaryCtxRetain", c.primaryCtxRetain(&c.context, c.device)); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *cuda) name() string { return c.description }

// call makes a call on a thread that has the context, as CUDA keeps it for each
// thread.
func (c *cuda) call(op string, f func() int32) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := c.check("cuCtxSetCurrent", c.ctxSetCurrent(c.context)); err != nil {
		return err
	}
	return c.check(op, f())
}

func (c *cuda) check(op string, result int32) error {
	if result == 0 {
		return nil
	}
	var name *byte
	if c.getErrorName(result, &name) != 0 {
		return fmt.Errorf("%s: error %d", op, result)
	}
	return fmt.Errorf("%s: %s", op, text(name))
}

func (c *cuda) alloc(size int) (address unsafe.Pointer, err error) {
	err = c.call("cuMemAlloc", func() int32 { return c.memAlloc(&address, wholePages(size)) })
	if err != nil {
		return nil, err
	}
	// Otherwise, a copy might begin before the data that another device has
	// written has arrived.
	on := uint32(1)
	err = c.call("cuPointerSetAttribute", func() int32 { return c.pointerSetAttr(&on, cudaSyncMemops, address) })
	if err != nil {
		return nil, errors.Join(err, c.free(address))
	}
	return address, nil
}

func (c *cuda) allocManaged(size int) (address unsafe.Pointer, err error) {
	err = c.call("cuMemAllocManaged", func() int32 { return c.memAllocManaged(&address, wholePages(size), cudaAttachGlobal) })
	return address, err
}

func (c *cuda) free(address unsafe.Pointer) error {
	return c.call("cuMemFree", func() int32 { return c.memFree(address) })
}

func (c *cuda) put(address unsafe.Pointer, from []byte) error {
	return c.call("cuMemcpyHtoD", func() int32 { return c.memcpyHtoD(address, &from[0], uintptr(len(from))) })
}

func (c *cuda) get(into []byte, address unsafe.Pointer) error {
	return c.call("cuMemcpyDtoH", func() int32 { return c.memcpyDtoH(&into[0], address, uintptr(len(into))) })
}

// export exports the whole pages that contain the memory, because the library
// requires whole pages.
func (c *cuda) export(address unsafe.Pointer, size int) (fd int, offset uint64, err error) {
	if !c.dmabuf {
		return 0, 0, errors.New("the memory of this GPU cannot be exported as a DMA buffer (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)")
	}
	begin, length := pages(address, size)
	var handle int32
	err = c.call("cuMemGetHandleForAddressRange", func() int32 {
		return c.memGetRangeHandle(&handle, begin, length, cudaDMABufFD, 0)
	})
	return int(handle), uint64(uintptr(address) - begin), err
}

// text converts a C string.
func text(s *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}
