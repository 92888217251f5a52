// SPDX-License-Identifier: Apache-2.0

package devmem

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// DM is memory on the device. Its methods may be called concurrently, but the
// results of concurrent copies of the same bytes are undefined.
type DM struct {
	object object.Object
	device *ibverbs.Device
	raw    *libibverbs.Dm
	size   int

	imported bool // whether Import returned the DM
}

// Alloc allocates size bytes of the device's own memory; see ibv_alloc_dm(3).
// If align is a power of two, the address is a multiple of align. If align is
// 0, the device chooses the address. If the device has no such memory, the
// error matches errors.ErrUnsupported.
func Alloc(device *ibverbs.Device, size, align int) (*DM, error) {
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	what := fmt.Sprintf("%d bytes of %s", size, device.Name())
	if size <= 0 || align < 0 || align&(align-1) != 0 {
		return nil, cerr.Refuse("ibv_alloc_dm", device.Name(), "size is %d and align is %d; size must be at least 1, and align 0 or a power of two", size, align)
	}
	attr := libibverbs.AllocDmAttr{Length: uint64(size), LogAlignReq: uint32(max(bits.Len(uint(align))-1, 0))}
	raw, err := libibverbs.AllocDm(device.Raw(), &attr)
	if err != nil {
		return nil, sibling.Wrap(what, err)
	}
	dm := &DM{device: device, raw: raw, size: size}
	dm.object.Init("DM of "+what, parent)
	return dm, nil
}

func (dm *DM) self() *object.Object {
	if dm == nil {
		return nil
	}
	return &dm.object
}

// Len returns the size in bytes.
func (dm *DM) Len() int { return dm.size }

// Raw returns the C object, which is valid until Close.
func (dm *DM) Raw() *libibverbs.Dm { return dm.raw }

// WriteAt copies all of p to the device's memory, or nothing; see
// ibv_memcpy_to_dm(3). Some devices need the address of p, off and len(p) to be
// multiples of 4 bytes.
func (dm *DM) WriteAt(p []byte, off int64) (int, error) {
	if err := dm.self().Use(); err != nil {
		return 0, err
	}
	defer dm.object.Done()
	const op = "ibv_memcpy_to_dm"
	if off < 0 || off > int64(dm.size)-int64(len(p)) {
		return 0, dm.outside(op, len(p), off)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := libibverbs.MemcpyToDm(dm.raw, uint64(off), unsafe.Pointer(&p[0]), uint64(len(p))); err != nil {
		return 0, sibling.Wrap(dm.object.Name(), err)
	}
	return len(p), nil
}

// ReadAt copies from the device's memory to p; see ibv_memcpy_to_dm(3). If the
// memory ends before p is full, the error is io.EOF. Some devices need off,
// len(p) and the address of p to be multiples of 4 bytes.
func (dm *DM) ReadAt(p []byte, off int64) (int, error) {
	if err := dm.self().Use(); err != nil {
		return 0, err
	}
	defer dm.object.Done()
	const op = "ibv_memcpy_from_dm"
	if off < 0 {
		return 0, dm.outside(op, len(p), off)
	}
	var end error
	if left := max(int64(dm.size)-off, 0); int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	if len(p) == 0 {
		return 0, end
	}
	if err := libibverbs.MemcpyFromDm(unsafe.Pointer(&p[0]), dm.raw, uint64(off), uint64(len(p))); err != nil {
		return 0, sibling.Wrap(dm.object.Name(), err)
	}
	return len(p), end
}

func (dm *DM) outside(op string, n int, off int64) error {
	return cerr.Refuse(op, dm.object.Name(), "%d bytes at %d are outside of its %d bytes", n, off, dm.size)
}

// ExportDMABuf returns a DMA-buf descriptor of the memory for drivers of other
// devices; see ibv_dm_export_dmabuf_fd(3). The caller must close it.
func (dm *DM) ExportDMABuf() (fd int, err error) {
	if err := dm.self().Use(); err != nil {
		return -1, err
	}
	defer dm.object.Done()
	fd, err = libibverbs.DmExportDmabufFd(dm.raw)
	if err != nil {
		return -1, sibling.Wrap(dm.object.Name(), err)
	}
	return fd, nil
}

// Close frees the memory; see ibv_alloc_dm(3). While it has memory regions,
// Close does nothing and returns an *[ibverbs.BusyError]. If the memory is from
// [Import], Close ends only the import; see ibv_unimport_dm(3).
func (dm *DM) Close() error {
	return dm.self().Close(nil, func() error {
		if dm.imported {
			return sibling.Wrap(dm.object.Name(), libibverbs.UnimportDm(dm.raw))
		}
		return sibling.Wrap(dm.object.Name(), sibling.UnlessRemoved(dm.device, libibverbs.FreeDm(dm.raw)))
	})
}

// Export holds what another process needs to import device memory.
type Export struct {
	Handle uint32
	Len    uint64 // bytes
}

// Export returns the value to pass to [Import] in a process that has imported
// the device with package share.
func (dm *DM) Export() (Export, error) {
	if err := dm.self().Use(); err != nil {
		return Export{}, err
	}
	defer dm.object.Done()
	return Export{Handle: dm.raw.Handle, Len: uint64(dm.size)}, nil
}

// Import imports device memory from the process that exported the device; see
// ibv_import_dm(3). Closing the import does not free the memory.
func Import(device *ibverbs.Device, export Export) (*DM, error) {
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	what := fmt.Sprintf("DM %d of %d bytes of %s", export.Handle, export.Len, device.Name())
	if export.Len == 0 || export.Len > math.MaxInt {
		return nil, cerr.Refuse("ibv_import_dm", what, "Len is %d, not from 1 to %d", export.Len, math.MaxInt)
	}
	raw, err := libibverbs.ImportDm(device.Raw(), export.Handle)
	if err != nil {
		return nil, sibling.Wrap(what, err)
	}
	dm := &DM{device: device, raw: raw, size: int(export.Len), imported: true}
	dm.object.Init("imported "+what, parent)
	return dm, nil
}

// Register registers n bytes of the memory from offset on, in a protection
// domain of the device; see ibv_alloc_dm(3). Work requests address the region
// from 0, even without [ibverbs.AccessZeroBased]. The region has no Bytes.
func (dm *DM) Register(pd *ibverbs.PD, offset, n int, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	const op = "ibv_reg_dm_mr"
	domain := sibling.ObjectOf(pd)
	done, err := object.UseAll(domain, dm.self())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	if err := sibling.SameDevice(op, domain.Name(), pd.Device(), &dm.object, dm.device); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%d bytes at %d of %s", n, offset, dm.object.Name())
	access |= ibverbs.AccessZeroBased
	if offset < 0 || n <= 0 || offset > dm.size-n {
		return nil, cerr.Refuse(op, domain.Name(), "%s are outside of its %d bytes", what, dm.size)
	}
	if problem := sealed.Open(pd.Internals()).AccessProblem(access); problem != "" {
		return nil, cerr.Refuse(op, domain.Name(), "%s for %s", problem, what)
	}
	if access&ibverbs.AccessOnDemand != 0 {
		return nil, cerr.Refuse(op, domain.Name(), "AccessOnDemand cannot be set for %s", what)
	}
	raw, err := libibverbs.RegDmMr(pd.Raw(), dm.raw, uint64(offset), uint64(n), access)
	if err != nil {
		return nil, sibling.Wrap(what+" on "+domain.Name(), err)
	}
	return sealed.Open(pd.Internals()).AdoptMR(raw, access, n, &dm.object), nil
}
