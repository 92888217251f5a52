package ibverbs

import (
	"fmt"
	"math"
	"os"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// DMABuf is memory of another device, such as a GPU's, as its driver exports
// it.
type DMABuf struct {
	FD     int    // the descriptor; it may be closed once the region is there
	Offset uint64 // where in the buffer the region begins, in bytes
	Length int    // bytes
	IOVA   uint64 // address of the first byte in work requests; the same place within a page as Offset
}

// dmabufAccess is what such a region can have.
const dmabufAccess = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic |
	AccessFlags(libibverbs.IBV_ACCESS_OPTIONAL_RANGE)

// RegisterDMABuf registers memory of another device; see ibv_reg_dmabuf_mr(3).
// The region has no Bytes. A device that cannot do it gives
// errors.ErrUnsupported.
func (pd *PD) RegisterDMABuf(b DMABuf, access AccessFlags) (*MR, error) {
	const op = "ibv_reg_dmabuf_mr"
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	what := fmt.Sprintf("%d bytes at %d of descriptor %d", b.Length, b.Offset, b.FD)
	page := uint64(os.Getpagesize())
	switch extra := access &^ dmabufAccess; {
	case b.FD < 0 || b.FD > math.MaxInt32, b.Length <= 0, b.Offset+uint64(b.Length) < b.Offset, b.IOVA+uint64(b.Length)-1 < b.IOVA:
		return nil, badMR(op, pd, what)
	case extra != 0:
		return nil, badMR(op, pd, accessName(extra)+" for "+what)
	case accessProblem(access) != "":
		return nil, badMR(op, pd, accessProblem(access)+" for "+what)
	case (b.Offset^b.IOVA)%page != 0:
		return nil, badMR(op, pd, fmt.Sprintf("%s for address %#x, elsewhere in a page", what, b.IOVA))
	}
	raw, err := libibverbs.RegDmabufMr(pd.raw, b.Offset, uint64(b.Length), b.IOVA, int32(b.FD), int32(access))
	if err != nil {
		return nil, cerr.Wrap(what+" on "+pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: access, start: b.IOVA, size: b.Length}), nil
}
