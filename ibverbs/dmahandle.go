// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// dmaHandle is a DMA handle of package devmem.
type dmaHandle struct {
	object *object.Object
	device *Device
	raw    *libibverbs.Dmah
}

const opRegisterDMA = "ibv_reg_mr_ex"

// Register registers memory with the handle.
func (h *dmaHandle) Register(pd *PD, b []byte, access AccessFlags) (*MR, error) {
	return h.RegisterIOVA(pd, b, addressOf(b), access)
}

// RegisterIOVA registers memory with the handle, at an address for work
// requests.
func (h *dmaHandle) RegisterIOVA(pd *PD, b []byte, iova uint64, access AccessFlags) (*MR, error) {
	done, err := pd.withHandle(h)
	if err != nil {
		return nil, err
	}
	defer done()
	if len(b) == 0 {
		return nil, badMR(opRegisterDMA, pd, "b is empty, and a region has at least one byte")
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
	return newMR(raw, r, h.object), nil
}

// RegisterDMABuf registers memory of another device with the handle.
func (h *dmaHandle) RegisterDMABuf(pd *PD, b DMABuf, access AccessFlags) (*MR, error) {
	return pd.registerDMABuf(b, h, access)
}

// RegisterImplicit registers the whole address space with the handle.
func (h *dmaHandle) RegisterImplicit(pd *PD, access AccessFlags) (*MR, error) {
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
	return newMR(raw, region{pd: pd, access: access, size: math.MaxInt}, h.object), nil
}

// withHandle keeps both objects in use until done is called. They must belong
// to one open device.
func (pd *PD) withHandle(h *dmaHandle) (done func(), err error) {
	done, err = object.UseAll(pd.self(), h.object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", opRegisterDMA, err)
	}
	if h.device.raw != pd.device.raw {
		done()
		return nil, otherDevice(opRegisterDMA, pd.object.Name(), h.object)
	}
	return done, nil
}

func (h *dmaHandle) register(pd *PD, memory unsafe.Pointer, size, iova uint64, access AccessFlags) (*libibverbs.Mr, error) {
	return libibverbs.RegMrEx(pd.raw, &libibverbs.MrInitAttr{
		Length: size, Access: access, Iova: iova, Addr: memory, Dmah: h.raw,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_ADDR | libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	})
}
