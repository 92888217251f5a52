package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/object"
)

// Register registers n bytes of the memory from offset on, in a protection domain of
// the device; see ibv_alloc_dm(3). Work requests address the region from 0 on:
// AccessZeroBased need not be given. The region has no Bytes.
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
