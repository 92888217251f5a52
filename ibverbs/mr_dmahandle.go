package ibverbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// TPHMemType is what kind of memory a PCIe transaction goes to.
type TPHMemType = libibverbs.TphMemType

// The kinds of memory.
const (
	TPHVolatile   = libibverbs.IBV_TPH_MEM_TYPE_VM
	TPHPersistent = libibverbs.IBV_TPH_MEM_TYPE_PM
)

// DMAHandleConfig says how the device is to reach memory over PCIe (TLP
// processing hints). What is nil is left to the system.
type DMAHandleConfig struct {
	CPU            *int // whose caches are near; the number that Linux gives it
	ProcessingHint *int // of PCIe, 0 to 3
	MemType        *TPHMemType
}

// DMAHandle is a way to memory for regions made by RegisterDMA, and by
// RegisterDMABuf with DMABuf.Handle.
type DMAHandle struct {
	object  object.Object
	context *Context
	raw     *libibverbs.Dmah
}

// AllocDMAHandle makes a handle; see ibv_alloc_dmah(3). A device or a library
// that cannot do it gives errors.ErrUnsupported.
func (c *Context) AllocDMAHandle(config DMAHandleConfig) (*DMAHandle, error) {
	const op = "ibv_alloc_dmah"
	if err := c.self().Use(); err != nil {
		return nil, err
	}
	defer c.object.Done()
	var attr libibverbs.DmahInitAttr
	if cpu := config.CPU; cpu != nil {
		if *cpu < 0 || uint64(*cpu) > 1<<32-1 {
			return nil, &cerr.Error{Op: op, Object: fmt.Sprintf("CPU %d, %s", *cpu, c.Name()), Errno: syscall.EINVAL}
		}
		attr.CpuId = uint32(*cpu)
		attr.CompMask |= uint32(libibverbs.IBV_DMAH_INIT_ATTR_MASK_CPU_ID)
	}
	if hint := config.ProcessingHint; hint != nil {
		if *hint < 0 || *hint > 3 {
			return nil, &cerr.Error{Op: op, Object: fmt.Sprintf("hint %d, %s", *hint, c.Name()), Errno: syscall.EINVAL}
		}
		attr.Ph = uint8(*hint)
		attr.CompMask |= uint32(libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH)
	}
	if typ := config.MemType; typ != nil {
		attr.TphMemType = uint8(*typ)
		attr.CompMask |= uint32(libibverbs.IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE)
	}
	raw, err := libibverbs.AllocDmah(c.raw, &attr)
	if err != nil {
		return nil, cerr.Wrap(c.Name(), err)
	}
	h := &DMAHandle{context: c, raw: raw}
	h.object.Init("DMA handle of "+c.Name(), &c.object)
	return h, nil
}

func (h *DMAHandle) self() *object.Object {
	if h == nil {
		return nil
	}
	return &h.object
}

// Raw returns the C object, which is valid until Close.
func (h *DMAHandle) Raw() *libibverbs.Dmah { return h.raw }

// Close releases the handle; see ibv_alloc_dmah(3). While it has memory
// regions, Close does nothing and returns a BusyError.
func (h *DMAHandle) Close() error {
	return h.self().Close(nil, func() error {
		return cerr.Wrap(h.object.Name(), h.context.unlessRemoved(libibverbs.DeallocDmah(h.raw)))
	})
}

// RegisterDMA is Register for memory that the device reaches as the handle
// says; see ibv_reg_mr_ex(3).
func (pd *PD) RegisterDMA(b []byte, h *DMAHandle, access AccessFlags) (*MR, error) {
	const op = "ibv_reg_mr_ex"
	done, err := object.UseAll(pd.self(), h.self())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	defer done()
	if len(b) == 0 {
		return nil, badMR(op, pd, "no memory")
	}
	if h.context.raw != pd.context.raw {
		return nil, badMR(op, pd, h.object.Name()+", which is not of the same open device,")
	}
	r := region{pd: pd, bytes: b, start: addressOf(b), size: len(b), access: access}
	access = r.forC()
	attr := libibverbs.MrInitAttr{
		Length: uint64(len(b)), Access: int32(access), Iova: r.start,
		Addr: unsafe.Pointer(unsafe.SliceData(b)), Dmah: h.raw,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	}
	if err := pd.checkHost(op, &r, addressOf(b)); err != nil {
		return nil, err
	}
	r.release = pin(b)
	raw, err := libibverbs.RegMrEx(pd.raw, &attr)
	if err != nil {
		r.release()
		return nil, cerr.Wrap(fmt.Sprintf("%d bytes with %s on %s", len(b), h.object.Name(), pd.object.Name()), err)
	}
	return newMR(raw, r, &h.object), nil
}
