// SPDX-License-Identifier: Apache-2.0

package devmem

import (
	"fmt"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// Buf is memory that the device's driver allocated for a protection domain. Its
// methods may be called concurrently.
type Buf struct {
	object object.Object
	pd     *ibverbs.PD
	raw    *libibverbs.Buf
	bytes  []byte
}

// AllocBuf allocates size bytes of memory that the device can access, not
// zeroed; see ibv_alloc_buf(3). Most devices can access all memory and need
// only [ibverbs.PD.Alloc]. In a confidential guest, some devices cannot; see
// [ibverbs.PD.AllocUnprotectedParentDomain]. Before rdma-core 64, AllocBuf
// fails with an error matching errors.ErrUnsupported.
func AllocBuf(pd *ibverbs.PD, size int) (*Buf, error) {
	parent := sibling.ObjectOf(pd)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	what := fmt.Sprintf("%d bytes on %s", size, parent.Name())
	if size <= 0 {
		return nil, cerr.Refuse("ibv_alloc_buf", parent.Name(), "size is %d, less than 1", size)
	}
	memory, raw, err := libibverbs.AllocBuf(pd.Raw(), uint64(size))
	if err != nil {
		return nil, sibling.Wrap(what, err)
	}
	b := &Buf{pd: pd, raw: raw, bytes: unsafe.Slice((*byte)(memory), size)}
	b.object.Init("buffer of "+what, parent)
	return b, nil
}

func (b *Buf) self() *object.Object {
	if b == nil {
		return nil
	}
	return &b.object
}

// PD returns the buffer's protection domain.
func (b *Buf) PD() *ibverbs.PD { return b.pd }

// Bytes returns the memory, or nil after Close. The memory must not be used
// after Close.
func (b *Buf) Bytes() []byte {
	if b.object.Closed() {
		return nil
	}
	return b.bytes
}

// Len returns the size in bytes.
func (b *Buf) Len() int { return len(b.bytes) }

// Raw returns the C object, which is valid until Close.
func (b *Buf) Raw() *libibverbs.Buf { return b.raw }

// Register registers n bytes of the memory from offset on, in the buffer's
// protection domain; see ibv_reg_buf_mr(3). [ibverbs.AccessZeroBased] is not
// allowed.
func (b *Buf) Register(offset, n int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	const op = "ibv_reg_buf_mr"
	if err := b.self().Use(); err != nil {
		return nil, err
	}
	defer b.object.Done()
	domain := sibling.ObjectOf(b.pd)
	if err := domain.Use(); err != nil {
		return nil, err
	}
	defer domain.Done()
	if offset < 0 || n <= 0 || offset > len(b.bytes)-n {
		return nil, cerr.Refuse(op, b.object.Name(), "%d bytes at %d are outside of its %d bytes", n, offset, len(b.bytes))
	}
	if access&ibverbs.AccessZeroBased != 0 {
		return nil, cerr.Refuse(op, domain.Name(), "AccessZeroBased cannot be set for a Buf")
	}
	bytes := b.bytes[offset : offset+n : offset+n]
	mr, err := sealed.Open(b.pd.Internals()).NewHostMR(op, bytes, access, &b.object, func() (*libibverbs.Mr, error) {
		return libibverbs.RegBufMr(b.pd.Raw(), b.raw, unsafe.Pointer(&bytes[0]), uint64(n), access)
	})
	if err != nil {
		return nil, sibling.Wrap(fmt.Sprintf("%d bytes at %d of %s", n, offset, b.object.Name()), err)
	}
	return mr, nil
}

// ExportDMABuf returns a DMA-buf descriptor of the memory for drivers of other
// devices; see ibv_alloc_buf(3). The caller must close it. ExportDMABuf fails
// with an error matching syscall.ENODATA if the memory has no DMA-buf. It needs
// rdma-core 65.
func (b *Buf) ExportDMABuf() (fd int, err error) {
	if err := b.self().Use(); err != nil {
		return -1, err
	}
	defer b.object.Done()
	fd, err = libibverbs.ExportBufDmabufFd(b.raw)
	if err != nil {
		return -1, sibling.Wrap(b.object.Name(), err)
	}
	return fd, nil
}

// Close frees the memory; see ibv_alloc_buf(3). While it has memory regions,
// Close does nothing and returns an *[ibverbs.BusyError].
func (b *Buf) Close() error {
	return b.self().Close(nil, func() error {
		return sibling.Wrap(b.object.Name(), libibverbs.FreeBuf(b.raw))
	})
}
