package ibverbs

import (
	"math"
	"math/bits"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// ClockDuration returns how long the device's clock takes for so many ticks: for
// the difference of two readings of RawClock, or of two timestamps of
// completions, with the bits that CompletionTimestampMask has. It is 0 if
// CoreClock is, and ends at the longest Duration.
func (a DeviceAttr) ClockDuration(ticks uint64) time.Duration {
	if a.CoreClock == 0 {
		return 0
	}
	const perMillisecond = uint64(time.Millisecond)
	high, low := bits.Mul64(ticks, perMillisecond) // CoreClock is in ticks for each millisecond
	if high >= a.CoreClock {
		return math.MaxInt64
	}
	ns, _ := bits.Div64(high, low, a.CoreClock)
	return time.Duration(min(ns, math.MaxInt64))
}

// RawClock reads the device's clock, which completion timestamps have too. It
// counts at DeviceAttr.CoreClock from a start that means nothing; see
// DeviceAttr.ClockDuration. A device without one gives errors.ErrUnsupported;
// see ibv_query_rt_values_ex(3).
func (d *Device) RawClock() (uint64, error) {
	if err := d.self().Use(); err != nil {
		return 0, err
	}
	defer d.object.Done()
	values := libibverbs.ValuesEx{CompMask: uint32(libibverbs.IBV_VALUES_MASK_RAW_CLOCK)}
	if err := libibverbs.QueryRtValuesEx(d.raw, &values); err != nil {
		return 0, wrap(d.Name(), err)
	}
	if values.CompMask&uint32(libibverbs.IBV_VALUES_MASK_RAW_CLOCK) == 0 {
		return 0, &Error{Op: "ibv_query_rt_values_ex", Object: d.Name(), Errno: syscall.EOPNOTSUPP}
	}
	// A count that C splits up as if it were nanoseconds.
	return uint64(values.RawClock.TvSec)*uint64(time.Second) + uint64(values.RawClock.TvNsec), nil
}
