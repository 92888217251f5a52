package ibverbs

import (
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// RawClock reads the device's clock, which completion timestamps have too. It
// counts at DeviceAttrEx.CoreClock from a start that means nothing. A device
// without one gives errors.ErrUnsupported; see ibv_query_rt_values_ex(3).
func (c *Context) RawClock() (uint64, error) {
	if err := c.self().Use(); err != nil {
		return 0, err
	}
	defer c.object.Done()
	values := libibverbs.ValuesEx{CompMask: uint32(libibverbs.IBV_VALUES_MASK_RAW_CLOCK)}
	if err := libibverbs.QueryRtValuesEx(c.raw, &values); err != nil {
		return 0, cerr.Wrap(c.Name(), err)
	}
	if values.CompMask&uint32(libibverbs.IBV_VALUES_MASK_RAW_CLOCK) == 0 {
		return 0, &cerr.Error{Op: "ibv_query_rt_values_ex", Object: c.Name(), Errno: syscall.EOPNOTSUPP}
	}
	// A count that C splits up as if it were nanoseconds.
	return uint64(values.RawClock.TvSec)*uint64(time.Second) + uint64(values.RawClock.TvNsec), nil
}
