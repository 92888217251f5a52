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
	defaultRetries  = 6 // with 7 Soft-RoCE would never notice that a peer has vanished
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
	v.retries = uint8(max(orDefault(o.Retries, defaultRetries), 0))
	v.rnrRetries = uint8(max(orDefault(o.RNRRetries, endlessRNR), 0))
	v.readDepth = uint8(max(orDefault(o.ReadDepth, min(readDepth, maxReadDepth)), 0))
	var err error
	if v.timeout, err = timeoutCode(orDefault(o.Timeout, defaultTimeout)); err != nil {
		return connectValues{}, err
	}
	if v.rnrTimer, err = RNRTimerCode(orDefault(o.RNRTimer, defaultRNRTimer)); err != nil {
		return connectValues{}, err
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
