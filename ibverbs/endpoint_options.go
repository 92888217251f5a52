package ibverbs

import (
	"cmp"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// connectValues are ConnectOptions without zero values that mean another one,
// and in C's encodings.
type connectValues struct {
	ConnectOptions
	timeout, retryCount, rnrRetryCount, rnrTimer, readDepth uint8
}

const (
	defaultHopLimit      = 64
	defaultTimeout       = 67 * time.Millisecond // 4.096 us * 2^14
	defaultRNRTimer      = 640 * time.Microsecond
	defaultRetryCount    = 6 // with 7 Soft-RoCE would never notice that a peer has vanished
	defaultRNRRetryCount = RNRRetryForever
	maxRetryCount        = 7
)

// countOr returns what a count stands for whose zero value is the default, and whose
// negative values are none.
func countOr(count, zero int) int { return max(cmp.Or(count, zero), 0) }

// complete checks the options, for a queue pair that can have readDepth RDMA
// reads and atomics under way.
func (o ConnectOptions) complete(t QPType, readDepth int) (connectValues, error) {
	v := connectValues{ConnectOptions: o}
	fail := func(format string, args ...any) (connectValues, error) {
		return connectValues{}, cerr.Invalid(format, args...)
	}
	switch {
	case t != QPTypeRC && t != QPTypeUC:
		return fail("the queue pair is of type %s, neither %s nor %s", t, QPTypeRC, QPTypeUC)
	case o.MaxMTU != 0 && o.MaxMTU.Bytes() == 0:
		return fail("MTU %d", uint32(o.MaxMTU))
	case o.SL > 15:
		return fail("service level %d", o.SL)
	case o.FlowLabel >= 1<<20:
		return fail("flow label %#x", o.FlowLabel)
	case o.RetryCount > maxRetryCount:
		return fail("retry count %d", o.RetryCount)
	case o.RNRRetryCount > maxRetryCount:
		return fail("RNR retry count %d", o.RNRRetryCount)
	case o.ReadDepth > readDepth:
		return fail("read depth %d of at most %d", o.ReadDepth, readDepth)
	case o.Timeout < 0 || o.MinRNRTimer < 0:
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
	v.HopLimit = cmp.Or(o.HopLimit, defaultHopLimit)
	v.retryCount = uint8(countOr(o.RetryCount, defaultRetryCount))
	v.rnrRetryCount = uint8(countOr(o.RNRRetryCount, defaultRNRRetryCount))
	v.readDepth = uint8(countOr(o.ReadDepth, min(readDepth, maxReadDepth)))
	var err error
	if v.timeout, err = timeoutCode(cmp.Or(o.Timeout, defaultTimeout)); err != nil {
		return connectValues{}, err
	}
	if v.rnrTimer, err = rnrTimerCode(cmp.Or(o.MinRNRTimer, defaultRNRTimer)); err != nil {
		return connectValues{}, err
	}
	return v, nil
}
