package ibverbs

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// DM is memory on the device. Its methods may be called concurrently, but
// simultaneous copies of the same bytes may mix.
type DM struct {
	object object.Object
	device *Device
	raw    *libibverbs.Dm
	handle uint32
	size   int

	imported bool // from ImportDM
}

// AllocDM allocates size bytes of the device's own memory; see ibv_alloc_dm(3).
// The address is a multiple of align, a power of two, or chosen by the device
// if align is 0. If the device has no such memory, the error is
// errors.ErrUnsupported.
func (d *Device) AllocDM(size, align int) (*DM, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	what := fmt.Sprintf("%d bytes of %s", size, d.Name())
	if size <= 0 || align < 0 || align&(align-1) != 0 {
		return nil, cerr.Refuse("ibv_alloc_dm", d.Name(), "size is %d and align %d, not positive and a power of two", size, align)
	}
	attr := libibverbs.AllocDmAttr{Length: uint64(size), LogAlignReq: uint32(max(bits.Len(uint(align))-1, 0))}
	raw, err := libibverbs.AllocDm(d.raw, &attr)
	if err != nil {
		return nil, wrap(what, err)
	}
	dm := &DM{device: d, raw: raw, handle: raw.Handle, size: size}
	dm.object.Init("DM of "+what, &d.object)
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
		return 0, wrap(dm.object.Name(), err)
	}
	return len(p), nil
}

// ReadAt copies from the device's memory to p; see ibv_memcpy_to_dm(3). If the
// memory ends before p is full, the error is io.EOF. Some devices need the
// address of p, off and len(p) to be multiples of 4 bytes.
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
		return 0, wrap(dm.object.Name(), err)
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
		return -1, wrap(dm.object.Name(), err)
	}
	return fd, nil
}

// Close frees the memory; see ibv_alloc_dm(3). While it has memory regions,
// Close does nothing and returns a *BusyError. For memory from ImportDM, Close
// leaves the original alone; see ibv_unimport_dm(3).
func (dm *DM) Close() error {
	return dm.self().Close(nil, func() error {
		if dm.imported {
			return wrap(dm.object.Name(), libibverbs.UnimportDm(dm.raw))
		}
		return wrap(dm.object.Name(), dm.device.unlessRemoved(libibverbs.FreeDm(dm.raw)))
	})
}

// DMExport holds what another process needs to import device memory.
type DMExport struct {
	Handle uint32
	Len    uint64 // bytes
}

// Export returns what ImportDM needs in a process that has imported the device.
func (dm *DM) Export() DMExport { return DMExport{Handle: dm.handle, Len: uint64(dm.size)} }

// ImportDM imports device memory from the process that exported the device; see
// ibv_import_dm(3). Close leaves the original alone.
func (d *Device) ImportDM(export DMExport) (*DM, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	what := fmt.Sprintf("DM %d of %d bytes of %s", export.Handle, export.Len, d.Name())
	if export.Len == 0 || export.Len > math.MaxInt {
		return nil, cerr.Refuse("ibv_import_dm", what, "Len is %d, not from 1 to %d", export.Len, math.MaxInt)
	}
	raw, err := libibverbs.ImportDm(d.raw, export.Handle)
	if err != nil {
		return nil, wrap(what, err)
	}
	dm := &DM{device: d, raw: raw, handle: raw.Handle, size: int(export.Len), imported: true}
	dm.object.Init("imported "+what, &d.object)
	return dm, nil
}

// Register registers n bytes of the memory from offset on, in a protection
// domain of the device; see ibv_alloc_dm(3). Work requests address the region
// from 0, even without AccessZeroBased. The region has no Bytes.
func (dm *DM) Register(pd *PD, offset, n int, access AccessFlags) (*MR, error) {
	const op = "ibv_reg_dm_mr"
	done, err := object.UseAll(pd.self(), dm.self())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	what := fmt.Sprintf("%d bytes at %d of %s", n, offset, dm.object.Name())
	access |= AccessZeroBased
	switch {
	case dm.device.raw != pd.device.raw:
		err = otherDevice(op, pd.object.Name(), dm.self())
	case offset < 0 || n <= 0 || offset > dm.size-n:
		err = badMR(op, pd, "%s, which has %d", what, dm.size)
	case accessProblem(access) != "":
		err = badMR(op, pd, "%s for %s", accessProblem(access), what)
	case access&AccessOnDemand != 0:
		err = badMR(op, pd, "AccessOnDemand for %s", what)
	}
	if err != nil {
		return nil, err
	}
	raw, err := libibverbs.RegDmMr(pd.raw, dm.raw, uint64(offset), uint64(n), uint32(access))
	if err != nil {
		return nil, wrap(what+" on "+pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: access, size: n}, &dm.object), nil
}
