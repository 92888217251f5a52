package ibverbs

import (
	"math"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// NoTimeout is the timeout of a queue pair that waits for ever.
const NoTimeout time.Duration = math.MaxInt64

// RNRRetryForever is the number of retries that never end while the peer has no
// receive posted.
const RNRRetryForever = 7

// timeoutUnit is in nanoseconds, the time of code 0 if that were not endless.
const timeoutUnit = 4096

// timeoutCode returns the code n, for 4.096 us * 2^n, of the shortest timeout
// that is not shorter than d.
func timeoutCode(d time.Duration) (uint8, error) {
	if d == NoTimeout {
		return 0, nil
	}
	for n := uint8(1); n < 32; n++ {
		if d <= timeoutUnit<<n {
			return n, checkPositive(d)
		}
	}
	return 0, cerr.Invalid("timeout of %v, the longest is %v", d, time.Duration(timeoutUnit<<31))
}

// timeoutOf is the reverse of timeoutCode.
func timeoutOf(code uint8) time.Duration {
	if code &= 31; code != 0 {
		return timeoutUnit << code
	}
	return NoTimeout
}

func checkPositive(d time.Duration) error {
	if d <= 0 {
		return cerr.Invalid("timeout of %v, which is not positive", d)
	}
	return nil
}

// rnrTimers has the delays of the codes from 1 on, in units of 10 us; that of
// code 0 is the longest.
var rnrTimers = [...]time.Duration{
	1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
	2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536,
}

const rnrUnit = 10 * time.Microsecond

// rnrTimerCode returns the code that libibverbs.QpAttr.MinRnrTimer has for the
// shortest delay, from 10 us to 655.36 ms, that is not shorter than d. Code 0
// is the longest.
func rnrTimerCode(d time.Duration) (uint8, error) {
	if d < 0 {
		return 0, cerr.Invalid("RNR timer of %v, which is negative", d)
	}
	for i, t := range rnrTimers {
		if d <= t*rnrUnit {
			return uint8(i+1) % 32, nil
		}
	}
	return 0, cerr.Invalid("RNR timer of %v, the longest is %v", d, rnrTimers[31]*rnrUnit)
}

// rnrTimerOf is the reverse of rnrTimerCode.
func rnrTimerOf(code uint8) time.Duration { return rnrTimers[(code+31)%32] * rnrUnit }
