// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/verbena-go/verbena/ibverbs"
)

// gpu is the first GPU of a vendor. Its methods may be called by any goroutine.
type gpu interface {
	name() string
	alloc(size int) (unsafe.Pointer, error)        // an address that only the GPU can use
	allocManaged(size int) (unsafe.Pointer, error) // one that the processor can use, too
	free(address unsafe.Pointer) error
	put(address unsafe.Pointer, from []byte) error
	get(into []byte, address unsafe.Pointer) error

	// export returns the descriptor of a DMA-BUF that contains the memory,
	// and the memory's offset in it.
	export(address unsafe.Pointer, size int) (fd int, offset uint64, err error)
}

// openGPU opens the library of the vendor whose library is installed.
func openGPU() (gpu, error) {
	nvidia, err := openCUDA()
	if err == nil {
		return nvidia, nil
	}
	amd, amdErr := openROCm()
	if amdErr == nil {
		return amd, nil
	}
	return nil, fmt.Errorf("no GPU: %w", errors.Join(err, amdErr))
}

// withManaged is a GPU of which the program uses managed memory. The vendors'
// libraries export no DMA-BUFs of it.
type withManaged struct{ gpu }

func (g withManaged) alloc(size int) (unsafe.Pointer, error) { return g.allocManaged(size) }

func (g withManaged) export(unsafe.Pointer, int) (fd int, offset uint64, err error) {
	return 0, 0, errors.New("managed memory can only be registered by its address")
}

// memory is GPU memory that an RDMA device can access.
type memory struct {
	*ibverbs.MR
	gpu     gpu
	address unsafe.Pointer
	way     string // description of how it was registered
}

func newMemory(g gpu, pd *ibverbs.PD, size int, access ibverbs.AccessFlags) (*memory, error) {
	address, err := g.alloc(size)
	if err != nil {
		return nil, err
	}
	m := &memory{gpu: g, address: address}
	if m.MR, m.way, err = register(g, pd, address, size, access); err != nil {
		return nil, errors.Join(err, g.free(address))
	}
	return m, nil
}

// register registers GPU memory as a DMA-BUF. If that fails, it registers the
// memory by its address, which works if the GPU's module for peer memory is
// loaded.
func register(g gpu, pd *ibverbs.PD, address unsafe.Pointer, size int, access ibverbs.AccessFlags) (mr *ibverbs.MR, way string, err error) {
	fd, offset, err := g.export(address, size)
	if err == nil {
		buffer := ibverbs.DMABuf{FD: fd, Offset: offset, Length: size, IOVA: uint64(uintptr(address))}
		mr, err = pd.RegisterDMABuf(buffer, access)
		syscall.Close(fd) // the region does not need the descriptor
	}
	if err == nil {
		return mr, "as a DMA buffer", nil
	}
	// The program must never access this slice: unless the memory is managed,
	// the processor cannot.
	mr, byAddress := pd.Register(unsafe.Slice((*byte)(address), size), access)
	if byAddress != nil {
		return nil, "", errors.Join(err, byAddress)
	}
	return mr, "by its address", nil
}

// close deregisters and frees the memory. No transfer may use it any more.
func (m *memory) close() error { return errors.Join(m.MR.Close(), m.gpu.free(m.address)) }

func (m *memory) put(data []byte) error { return m.gpu.put(m.address, data) }

func (m *memory) get(data []byte) error { return m.gpu.get(data, m.address) }

// pages returns the whole pages that contain a range of addresses.
func pages(address unsafe.Pointer, size int) (begin uintptr, length uintptr) {
	page := uintptr(os.Getpagesize())
	begin = uintptr(address) &^ (page - 1)
	end := (uintptr(address) + uintptr(size) + page - 1) &^ (page - 1)
	return begin, end - begin
}

// gpuPage is a number of bytes that consists of whole pages on the GPUs of both
// vendors.
const gpuPage = 64 << 10

// wholePages rounds a size up to whole pages of the GPU, so that the pages
// contain nothing else.
func wholePages(size int) uintptr { return (uintptr(size) + gpuPage - 1) &^ (gpuPage - 1) }

// load opens a library and sets each function pointer to the library's function
// of that name. software is the name of the software that contains the library.
func load(library, software string, functions map[string]any) error {
	handle, err := purego.Dlopen(library, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("%w (it comes with %s)", err, software)
	}
	for name, function := range functions {
		address, err := purego.Dlsym(handle, name)
		if err != nil {
			return err
		}
		purego.RegisterFunc(function, address)
	}
	return nil
}
