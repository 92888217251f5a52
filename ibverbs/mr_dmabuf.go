package ibverbs

import (
	"fmt"
	"math"
	"os"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// DMABuf is memory of another device, such as a GPU's, as its driver exports
// it.
type DMABuf struct {
	FD     int    // the descriptor; it may be closed once the region is there
	Offset uint64 // where in the buffer the region begins, in bytes
	Length int    // bytes
	IOVA   uint64 // address of the first byte in work requests; the same place within a page as Offset

	Handle *DMAHandle // how the device is to reach it, which needs rdma-core 59; nil: as it likes
}

// dmabufAccess is what such a region can have.
const dmabufAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// RegisterDMABuf registers memory of another device; see ibv_reg_dmabuf_mr(3).
// The region has no Bytes. A device that cannot do it gives
// errors.ErrUnsupported.
func (pd *PD) RegisterDMABuf(b DMABuf, access AccessFlags) (*MR, error) {
	op, parents := "ibv_reg_dmabuf_mr", []*object.Object{pd.self()}
	if b.Handle != nil {
		op, parents = "ibv_reg_mr_ex", append(parents, b.Handle.self())
	}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	what := fmt.Sprintf("%d bytes at %d of descriptor %d", b.Length, b.Offset, b.FD)
	page := uint64(os.Getpagesize())
	switch extra := access &^ dmabufAccess; {
	case b.FD < 0 || b.FD > math.MaxInt32, b.Length <= 0, b.Offset+uint64(b.Length) < b.Offset, b.IOVA+uint64(b.Length)-1 < b.IOVA:
		return nil, badMR(op, pd, "%s at address %#x: none, or beyond the last address", what, b.IOVA)
	case extra != 0:
		return nil, badMR(op, pd, "%s for %s", accessName(extra), what)
	case accessProblem(access) != "":
		return nil, badMR(op, pd, "%s for %s", accessProblem(access), what)
	case (b.Offset^b.IOVA)%page != 0:
		return nil, badMR(op, pd, "%s for address %#x, elsewhere in a page", what, b.IOVA)
	case b.Handle != nil && b.Handle.device.raw != pd.device.raw:
		return nil, otherDevice(op, pd.object.Name(), b.Handle.self())
	}
	raw, err := b.register(pd, access)
	if err != nil {
		return nil, wrap(what+" on "+pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: access, start: b.IOVA, size: b.Length}, parents...), nil
}

func (b DMABuf) register(pd *PD, access AccessFlags) (*libibverbs.Mr, error) {
	if b.Handle == nil {
		return libibverbs.RegDmabufMr(pd.raw, b.Offset, uint64(b.Length), b.IOVA, int32(b.FD), int32(access))
	}
	return libibverbs.RegMrEx(pd.raw, &libibverbs.MrInitAttr{
		Length: uint64(b.Length), Access: int32(access), Iova: b.IOVA, Fd: int32(b.FD), FdOffset: b.Offset, Dmah: b.Handle.raw,
		CompMask: uint64(libibverbs.IBV_REG_MR_MASK_FD | libibverbs.IBV_REG_MR_MASK_FD_OFFSET |
			libibverbs.IBV_REG_MR_MASK_IOVA | libibverbs.IBV_REG_MR_MASK_DMAH),
	})
}
