package ibverbs

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// TPHMemType is what kind of memory a PCIe transaction goes to.
type TPHMemType = libibverbs.TphMemType

// The kinds of memory.
const (
	TPHVolatile   TPHMemType = libibverbs.IBV_TPH_MEM_TYPE_VM
	TPHPersistent TPHMemType = libibverbs.IBV_TPH_MEM_TYPE_PM
)

// DMAHandleConfig says how the device is to reach memory over PCIe (TLP
// processing hints). What is nil is left to the system.
type DMAHandleConfig struct {
	CPU            *int // whose caches are near; the number that Linux gives it
	ProcessingHint *int // of PCIe, 0 to 3
	MemType        *TPHMemType
}

// DMAHandle is a way to memory for regions made WithDMAHandle, and
// by RegisterDMABuf with DMABuf.Handle.
type DMAHandle struct {
	object object.Object
	device *Device
	raw    *libibverbs.Dmah
}

// AllocDMAHandle makes a handle; see ibv_alloc_dmah(3). A device or a library
// that cannot do it gives errors.ErrUnsupported.
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

// Close releases the handle; see ibv_alloc_dmah(3). While it has memory
// regions, Close does nothing and returns a BusyError.
func (h *DMAHandle) Close() error {
	return h.self().Close(nil, func() error {
		return wrap(h.object.Name(), h.device.unlessRemoved(libibverbs.DeallocDmah(h.raw)))
	})
}
