package ibverbs

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// TPHMemType is the kind of memory that a PCIe transaction targets.
type TPHMemType = libibverbs.TphMemType

// The kinds of memory that PCIe transactions target.
const (
	TPHVolatile   TPHMemType = libibverbs.IBV_TPH_MEM_TYPE_VM
	TPHPersistent TPHMemType = libibverbs.IBV_TPH_MEM_TYPE_PM
)

// DMAHandleConfig selects how the device reaches memory over PCIe (TLP
// processing hints). The system chooses what is nil.
type DMAHandleConfig struct {
	CPU            *int // Linux's number of the CPU with the nearest caches
	ProcessingHint *int // PCIe processing hint, 0 to 3
	MemType        *TPHMemType
}

// DMAHandle describes how the device reaches memory. Pass it to WithDMAHandle,
// or as DMABuf.Handle to RegisterDMABuf.
type DMAHandle struct {
	object object.Object
	device *Device
	raw    *libibverbs.Dmah
}

// AllocDMAHandle creates a handle; see ibv_alloc_dmah(3). If the device or the
// library does not support it, the error is errors.ErrUnsupported.
func (d *Device) AllocDMAHandle(config DMAHandleConfig) (*DMAHandle, error) {
	const op = "ibv_alloc_dmah"
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	var attr libibverbs.DmahInitAttr
	if cpu := config.CPU; cpu != nil {
		if *cpu < 0 || uint64(*cpu) > math.MaxUint32 {
			return nil, cerr.Refuse(op, d.Name(), "CPU is %d, not from 0 to %d", *cpu, uint32(math.MaxUint32))
		}
		attr.CpuId = uint32(*cpu)
		attr.CompMask |= uint32(libibverbs.IBV_DMAH_INIT_ATTR_MASK_CPU_ID)
	}
	if hint := config.ProcessingHint; hint != nil {
		if *hint < 0 || *hint > 3 {
			return nil, cerr.Refuse(op, d.Name(), "ProcessingHint is %d, not from 0 to 3", *hint)
		}
		attr.Ph = uint8(*hint)
		attr.CompMask |= uint32(libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH)
	}
	if typ := config.MemType; typ != nil {
		attr.TphMemType = uint8(*typ)
		attr.CompMask |= uint32(libibverbs.IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE)
	}
	raw, err := libibverbs.AllocDmah(d.raw, &attr)
	if err != nil {
		return nil, wrap(d.Name(), err)
	}
	h := &DMAHandle{device: d, raw: raw}
	h.object.Init("DMA handle of "+d.Name(), &d.object)
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

// Close frees the handle; see ibv_alloc_dmah(3). While it has memory regions,
// Close does nothing and returns a *BusyError.
func (h *DMAHandle) Close() error {
	return h.self().Close(nil, func() error {
		return wrap(h.object.Name(), h.device.unlessRemoved(libibverbs.DeallocDmah(h.raw)))
	})
}

const opRegisterDMA = "ibv_reg_mr_ex"

// registerDMA registers memory with a handle.
func (pd *PD) registerDMA(b []byte, iova uint64, h *DMAHandle, access AccessFlags) (*MR, error) {
	done, err := pd.withHandle(h)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(b) == 0 {
		return nil, badMR(opRegisterDMA, pd, "no memory")
	}
	r := region{pd: pd, bytes: b, start: iova, size: len(b), access: access}
	access = r.forC()
	if err := pd.checkHost(opRegisterDMA, &r, addressOf(b)); err != nil {
		return nil, err
	}
	r.release = pin(b)
	raw, err := h.register(pd, unsafe.Pointer(unsafe.SliceData(b)), uint64(len(b)), r.start, access)
	if err != nil {
		r.release()
		return nil, wrap(fmt.Sprintf("%d bytes with %s on %s", len(b), h.object.Name(), pd.object.Name()), err)
	}
	return newMR(raw, r, &h.object), nil
}

// registerDMAImplicit registers the whole address space with a handle.
func (pd *PD) registerDMAImplicit(h *DMAHandle, access AccessFlags) (*MR, error) {
	done, err := pd.withHandle(h)
	if err != nil {
		return nil, err
	}
	defer done()
	access |= AccessOnDemand
	if err := pd.checkImplicit(opRegisterDMA, access); err != nil {
		return nil, err
	}
	raw, err := h.register(pd, nil, math.MaxUint64, 0, access)
	if err != nil {
		return nil, wrap(fmt.Sprintf("the whole address space with %s on %s", h.object.Name(), pd.object.Name()), err)
	}
	return newMR(raw, region{pd: pd, access: access, size: math.MaxInt}, &h.object), nil
}

// withHandle keeps both objects in use until done is called. They must belong
// to one open device.
func (pd *PD) withHandle(h *DMAHandle) (done func(), err error) {
	done, err = object.UseAll(pd.self(), h.self())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRegisterDMA, err)
	}
	if h.device.raw != pd.device.raw {
		done()
		return nil, otherDevice(opRegisterDMA, pd.object.Name(), h.self())
	}
	return done, nil
}

func (h *DMAHandle) register(pd *PD, memory unsafe.Pointer, size, iova uint64, access AccessFlags) (*libibverbs.Mr, error) {
	return libibverbs.RegMrEx(pd.raw, &libibverbs.MrInitAttr{
		Length: size, Access: int32(access), Iova: iova, Addr: memory, Dmah: h.raw,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	})
}
