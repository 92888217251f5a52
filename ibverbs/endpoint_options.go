package ibverbs

import (
	"fmt"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// connectValues are ConnectOptions without zero values that mean another one,
// and in C's encodings.
type connectValues struct {
	ConnectOptions
	timeout, retries, rnrRetries, rnrTimer, readDepth uint8
}

const (
	defaultHopLimit = 64
	defaultTimeout  = 67 * time.Millisecond // 4.096 us * 2^14
	defaultRNRTimer = 640 * time.Microsecond
	endlessRNR      = 7
	mostRetries     = 7
)

// complete checks the options, for a queue pair that can have readDepth RDMA
// reads and atomics under way.
func (o ConnectOptions) complete(t QPType, readDepth int) (connectValues, error) {
	v := connectValues{ConnectOptions: o}
	fail := func(format string, args ...any) (connectValues, error) {
		return connectValues{}, fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)
	}
	switch {
	case t != QPTypeRC && t != QPTypeUC:
		return fail("it is of type %s", t)
	case o.MaxMTU != 0 && o.MaxMTU.Bytes() == 0:
		return fail("MTU %d", uint32(o.MaxMTU))
	case o.ServiceLevel > 15:
		return fail("service level %d", o.ServiceLevel)
	case o.FlowLabel >= 1<<20:
		return fail("flow label %#x", o.FlowLabel)
	case o.Retries < -1 || o.Retries > mostRetries:
		return fail("%d retries", o.Retries)
	case o.RNRRetries < -1 || o.RNRRetries >= endlessRNR:
		return fail("%d RNR retries", o.RNRRetries)
	case o.ReadDepth < -1 || o.ReadDepth > readDepth:
		return fail("read depth %d of at most %d", o.ReadDepth, readDepth)
	case o.Timeout < 0 || o.RNRTimer < 0:
		return fail("negative timeout")
	}
	if v.Access == 0 {
		v.Access = AccessRemoteWrite
		if t == QPTypeRC {
			v.Access |= AccessRemoteRead | AccessRemoteAtomic
		}
	}
	if v.MaxMTU == 0 {
		v.MaxMTU = MTU(libibverbs.IBV_MTU_4096)
	}
	v.HopLimit = orDefault(o.HopLimit, defaultHopLimit)
	v.retries = uint8(max(orDefault(o.Retries, mostRetries), 0))
	v.rnrRetries = uint8(max(orDefault(o.RNRRetries, endlessRNR), 0))
	v.readDepth = uint8(max(orDefault(o.ReadDepth, min(readDepth, maxReadDepth)), 0))
	var ok bool
	if v.timeout, ok = ackTimeout(orDefault(o.Timeout, defaultTimeout)); !ok {
		return fail("timeout of %s", o.Timeout)
	}
	if v.rnrTimer, ok = rnrTimer(orDefault(o.RNRTimer, defaultRNRTimer)); !ok {
		return fail("RNR timer of %s", o.RNRTimer)
	}
	return v, nil
}

func orDefault[T comparable](v, zeroMeans T) T {
	var zero T
	if v == zero {
		return zeroMeans
	}
	return v
}

// ackTimeout returns n for which 4.096 us * 2^n is at least d.
func ackTimeout(d time.Duration) (n uint8, ok bool) {
	for n := uint8(1); n < 32; n++ { // 0 would be endless
		if d <= 4096*time.Nanosecond<<n {
			return n, true
		}
	}
	return 0, false
}

// rnrTimers are, by the specification's number, in units of 10 us.
var rnrTimers = [32]time.Duration{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// rnrTimer returns the number of the shortest time that is at least d.
func rnrTimer(d time.Duration) (uint8, bool) {
	for n := 1; n <= len(rnrTimers); n++ {
		code := n % len(rnrTimers) // 0 is the longest
		if d <= rnrTimers[code]*10*time.Microsecond {
			return uint8(code), true
		}
	}
	return 0, false
}
