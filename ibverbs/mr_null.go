package ibverbs

import (
	"math"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// AllocNullMR makes a region of no memory; see ibv_reg_mr(3). What a request
// writes to a segment of it, of any offset and size, goes nowhere, and what it
// reads are zeros. Peers cannot use it. A device without such regions gives
// errors.ErrUnsupported.
func (pd *PD) AllocNullMR() (*MR, error) {
	if err := pd.self().Use(); err != nil {
		return nil, err
	}
	defer pd.object.Done()
	raw, err := libibverbs.AllocNullMr(pd.raw)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	return newMR(raw, region{pd: pd, access: AccessLocalWrite, size: math.MaxInt}), nil
}
