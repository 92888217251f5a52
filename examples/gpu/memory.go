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

// gpu is the first GPU of a maker. Its methods may be called by any goroutine.
type gpu interface {
	name() string
	alloc(size int) (unsafe.Pointer, error) // an address that only the GPU can use
	free(address unsafe.Pointer) error
	put(address unsafe.Pointer, from []byte) error
	get(into []byte, address unsafe.Pointer) error

	// export returns a DMA buffer that the memory is part of, and where it
	// begins there.
	export(address unsafe.Pointer, size int) (fd int, offset uint64, err error)
}

// openGPU opens the library of the maker whose library is here.
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

// memory is GPU memory that an RDMA device can access.
type memory struct {
	*ibverbs.MR
	gpu     gpu
	address unsafe.Pointer
	way     string // in which it was registered
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

// register registers GPU memory as a DMA buffer, or else by its address, which
// the kernel knows what to do with if the GPU's module for peer memory is
// loaded.
func register(g gpu, pd *ibverbs.PD, address unsafe.Pointer, size int, access ibverbs.AccessFlags) (mr *ibverbs.MR, way string, err error) {
	fd, offset, err := g.export(address, size)
	if err == nil {
		buffer := ibverbs.DMABuf{FD: fd, Offset: offset, Length: size, IOVA: uint64(uintptr(address))}
		mr, err = pd.RegisterDMABuf(buffer, access)
		syscall.Close(fd) // the region does not need it
	}
	if err == nil {
		return mr, "as a DMA buffer", nil
	}
	// Nothing may ever look into this slice: the processor cannot.
	mr, byAddress := pd.Register(unsafe.Slice((*byte)(address), size), access)
	if byAddress != nil {
		return nil, "", errors.Join(err, byAddress)
	}
	return mr, "by its address", nil
}

// close gives the memory back. No transfer may use it any more.
func (m *memory) close() error { return errors.Join(m.MR.Close(), m.gpu.free(m.address)) }

func (m *memory) put(data []byte) error { return m.gpu.put(m.address, data) }

func (m *memory) get(data []byte) error { return m.gpu.get(data, m.address) }

// pages returns the whole pages that a range of addresses lies in.
func pages(address unsafe.Pointer, size int) (begin uintptr, length uintptr) {
	page := uintptr(os.Getpagesize())
	begin = uintptr(address) &^ (page - 1)
	end := (uintptr(address) + uintptr(size) + page - 1) &^ (page - 1)
	return begin, end - begin
}

// gpuPage is a size of which both makers' GPUs have whole pages.
const gpuPage = 64 << 10

// wholePages returns a size of whole pages of the GPU's, so that nothing else
// is in them.
func wholePages(size int) uintptr { return (uintptr(size) + gpuPage - 1) &^ (gpuPage - 1) }

// load opens a library, which comes with the named software, and sets each
// function to the one of that name.
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
