package ibverbs

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

const opRegisterDMA = "ibv_reg_mr_ex"

// registerDMA is Register with a handle.
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

// registerDMAImplicit is RegisterImplicit with a handle.
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

// withHandle keeps both objects, which must be of one open device, in use until
// done.
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
