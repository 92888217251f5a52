// SPDX-License-Identifier: Apache-2.0

package devmem

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// TPHMemType is the kind of memory that a PCIe transaction accesses.
type TPHMemType = libibverbs.TphMemType

// The kinds of memory that PCIe transactions access.
const (
	TPHVolatile   TPHMemType = libibverbs.IBV_TPH_MEM_TYPE_VM
	TPHPersistent TPHMemType = libibverbs.IBV_TPH_MEM_TYPE_PM
)

// DMAHandleConfig selects how the device accesses memory over PCIe (TLP
// processing hints). The system chooses the value of a field that is nil.
type DMAHandleConfig struct {
	CPU            *int // Linux's number of the CPU whose caches are the nearest
	ProcessingHint *int // PCIe processing hint, 0 to 3
	MemType        *TPHMemType
}

// DMAHandle describes how the device reaches memory that is registered
// with it.
type DMAHandle struct {
	object object.Object
	device *ibverbs.Device
	raw    *libibverbs.Dmah
}

// AllocDMAHandle allocates a handle; see ibv_alloc_dmah(3). If the device or
// the library does not support it, the error matches errors.ErrUnsupported.
func AllocDMAHandle(device *ibverbs.Device, config DMAHandleConfig) (*DMAHandle, error) {
	const op = "ibv_alloc_dmah"
	parent := sibling.ObjectOf(device)
	if err := parent.Use(); err != nil {
		return nil, err
	}
	defer parent.Done()
	var attr libibverbs.DmahInitAttr
	if cpu := config.CPU; cpu != nil {
		if *cpu < 0 || uint64(*cpu) > math.MaxUint32 {
			return nil, cerr.Refuse(op, device.Name(), "CPU is %d, not from 0 to %d", *cpu, uint32(math.MaxUint32))
		}
		attr.CpuId = uint32(*cpu)
		attr.CompMask |= libibverbs.IBV_DMAH_INIT_ATTR_MASK_CPU_ID
	}
	if hint := config.ProcessingHint; hint != nil {
		if *hint < 0 || *hint > 3 {
			return nil, cerr.Refuse(op, device.Name(), "ProcessingHint is %d, not from 0 to 3", *hint)
		}
		attr.Ph = uint8(*hint)
		attr.CompMask |= libibverbs.IBV_DMAH_INIT_ATTR_MASK_PH
	}
	if typ := config.MemType; typ != nil {
		attr.TphMemType = uint8(*typ)
		attr.CompMask |= libibverbs.IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE
	}
	raw, err := libibverbs.AllocDmah(device.Raw(), &attr)
	if err != nil {
		return nil, sibling.Wrap(device.Name(), err)
	}
	h := &DMAHandle{device: device, raw: raw}
	h.object.Init("DMA handle of "+device.Name(), parent)
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
// Close does nothing and returns an *[ibverbs.BusyError].
func (h *DMAHandle) Close() error {
	return h.self().Close(nil, func() error {
		return sibling.Wrap(h.object.Name(), sibling.UnlessRemoved(h.device, libibverbs.DeallocDmah(h.raw)))
	})
}

// registrar has the functions of package ibverbs that register memory with a
// DMA handle.
type registrar interface {
	Register(pd *ibverbs.PD, b []byte, access ibverbs.AccessFlags) (*ibverbs.MR, error)
	RegisterIOVA(pd *ibverbs.PD, b []byte, iova uint64, access ibverbs.AccessFlags) (*ibverbs.MR, error)
	RegisterDMABuf(pd *ibverbs.PD, b ibverbs.DMABuf, access ibverbs.AccessFlags) (*ibverbs.MR, error)
	RegisterImplicit(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error)
}

func (h *DMAHandle) registrar() registrar {
	if h == nil {
		h = new(DMAHandle) // registration fails with a handle that was not allocated
	}
	return sealed.Open(h.device.Internals()).DMAHandle(&h.object, h.raw)
}

// Register registers memory as [ibverbs.PD.Register] does. The device accesses
// the memory as the handle describes; see ibv_reg_mr_ex(3). This needs
// rdma-core 59. Close the region before the handle.
func (h *DMAHandle) Register(pd *ibverbs.PD, b []byte, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return h.registrar().Register(pd, b, access)
}

// RegisterIOVA registers memory as [ibverbs.PD.RegisterIOVA] does. The device
// accesses the memory as the handle describes; see ibv_reg_mr_ex(3). This needs
// rdma-core 59. Close the region before the handle.
func (h *DMAHandle) RegisterIOVA(pd *ibverbs.PD, b []byte, iova uint64, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return h.registrar().RegisterIOVA(pd, b, iova, access)
}

// RegisterDMABuf registers memory of another device as
// [ibverbs.PD.RegisterDMABuf] does. The device accesses the memory as the
// handle describes; see ibv_reg_mr_ex(3). This needs rdma-core 59. Close the
// region before the handle.
func (h *DMAHandle) RegisterDMABuf(pd *ibverbs.PD, b ibverbs.DMABuf, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return h.registrar().RegisterDMABuf(pd, b, access)
}

// RegisterImplicit registers the whole address space as
// [ibverbs.PD.RegisterImplicit] does. It fails with an error matching
// syscall.EINVAL if the device supports this only without a DMA handle. The
// device accesses the memory as the handle describes; see ibv_reg_mr_ex(3).
// This needs rdma-core 59. Close the region before the handle.
func (h *DMAHandle) RegisterImplicit(pd *ibverbs.PD, access ibverbs.AccessFlags) (*ibverbs.MR, error) {
	return h.registrar().RegisterImplicit(pd, access)
}
