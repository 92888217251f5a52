package ibverbs

import (
	"math"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// MigState is how far a queue pair is on the way to its alternate path.
type MigState = libibverbs.MigState

// The states of path migration.
const (
	Migrated       MigState = libibverbs.IBV_MIG_MIGRATED // the alternate path is in use, or there is none
	MigrationRearm MigState = libibverbs.IBV_MIG_REARM    // asked to arm an alternate path
	MigrationArmed MigState = libibverbs.IBV_MIG_ARMED    // ready to change to it
)

// QPAttr has the attributes of a queue pair, for Modify and from Query.
// Numbers have the host's byte order.
type QPAttr struct {
	State         QPState
	CurState      QPState // for Modify: what the device shall take for the state
	NotifyDrained bool    // for Modify to SQD: an event says when the queue is drained
	Draining      bool    // from Query: requests are still being processed
	Access        AccessFlags
	Port          int // from 1
	PKeyIndex     int
	QKey          uint32 // of datagrams

	Path        AHAttr // to the peer
	PathMTU     MTU
	DestQPNum   uint32 // the peer's queue pair, 24 bits
	RecvPSN     uint32 // of the first packet to come, 24 bits
	SendPSN     uint32 // of the first packet to go, 24 bits
	MinRNRTimer time.Duration

	// How long to wait for an acknowledgement, from 8.192 us to 2.4 hours, or
	// NoTimeout; how often to try again without one, up to 7; and how often to
	// try again while the peer has no receive, up to 6, or RNRRetryForever.
	// Time is rounded up to 4.096 us * 2^n.
	Timeout       time.Duration
	RetryCount    int
	RNRRetryCount int

	MaxReadAtomic     int // RDMA reads and atomics under way to the peer
	MaxDestReadAtomic int // and from the peer

	Migration    MigState
	AltPath      AHAttr
	AltPKeyIndex int
	AltTimeout   time.Duration

	RateLimit uint32 // for Modify: kilobits per second, 0: none
	Cap       QPCap  // from Query
}

// raw returns the attributes that mask names as C takes them.
func (a *QPAttr) raw(mask QPAttrMask) (libibverbs.QpAttr, error) {
	r := libibverbs.QpAttr{
		QpState: a.State, CurQpState: a.CurState, PathMtu: libibverbs.Mtu(a.PathMTU), PathMigState: a.Migration,
		Qkey: a.QKey, RqPsn: a.RecvPSN, SqPsn: a.SendPSN, DestQpNum: a.DestQPNum, QpAccessFlags: uint32(a.Access),
		PkeyIndex: uint16(a.PKeyIndex), AltPkeyIndex: uint16(a.AltPKeyIndex),
		MaxRdAtomic: uint8(a.MaxReadAtomic), MaxDestRdAtomic: uint8(a.MaxDestReadAtomic),
		PortNum: uint8(a.Port), RetryCnt: uint8(a.RetryCount), RnrRetry: uint8(a.RNRRetryCount),
		AltPortNum: uint8(a.AltPath.Port), RateLimit: a.RateLimit,
	}
	if a.NotifyDrained {
		r.EnSqdAsyncNotify = 1
	}
	var err error
	set := func(bit QPAttrMask, convert func() error) {
		if mask&bit != 0 && err == nil {
			err = convert()
		}
	}
	number := func(bit QPAttrMask, name string, v, low, high int) {
		set(bit, func() error { return inRange(name, v, low, high) })
	}
	number(QPAttrState, "state", int(a.State), 0, int(QPStateError))
	number(QPAttrCurState, "current state", int(a.CurState), 0, int(QPStateError))
	number(QPAttrPort, "port", a.Port, 1, 255)
	number(QPAttrPKeyIndex, "P_Key index", a.PKeyIndex, 0, math.MaxUint16)
	number(QPAttrPathMTU, "path MTU", int(a.PathMTU), int(libibverbs.IBV_MTU_256), int(libibverbs.IBV_MTU_4096))
	number(QPAttrDestQPNum, "destination QP number", int(a.DestQPNum), 0, maxQPN)
	number(QPAttrRecvPSN, "receive PSN", int(a.RecvPSN), 0, maxPSN)
	number(QPAttrSendPSN, "send PSN", int(a.SendPSN), 0, maxPSN)
	number(QPAttrRetryCount, "retry count", a.RetryCount, 0, 7)
	number(QPAttrRNRRetryCount, "RNR retry count", a.RNRRetryCount, 0, RNRRetryForever)
	number(QPAttrMaxReadAtomic, "number of reads and atomics under way", a.MaxReadAtomic, 0, 255)
	number(QPAttrMaxDestReadAtomic, "number of reads and atomics from the peer", a.MaxDestReadAtomic, 0, 255)
	number(QPAttrAltPath, "alternate P_Key index", a.AltPKeyIndex, 0, math.MaxUint16)
	set(libibverbs.IBV_QP_CAP, func() error {
		return cerr.Invalid("the capacities cannot be modified")
	})
	set(QPAttrPath, func() (err error) { r.AhAttr, err = a.Path.raw(); return err })
	set(QPAttrMinRNRTimer, func() (err error) { r.MinRnrTimer, err = rnrTimerCode(a.MinRNRTimer); return err })
	set(QPAttrTimeout, func() (err error) { r.Timeout, err = timeoutCode(a.Timeout); return err })
	set(QPAttrAltPath, func() (err error) {
		if r.AltAhAttr, err = a.AltPath.raw(); err == nil {
			r.AltTimeout, err = timeoutCode(a.AltTimeout)
		}
		return err
	})
	return r, err
}

func qpAttrOf(r *libibverbs.QpAttr) QPAttr {
	return QPAttr{
		State: r.QpState, CurState: r.CurQpState, NotifyDrained: r.EnSqdAsyncNotify != 0, Draining: r.SqDraining != 0,
		Access: AccessFlags(r.QpAccessFlags), Port: int(r.PortNum), PKeyIndex: int(r.PkeyIndex), QKey: r.Qkey,
		Path: ahAttrOf(&r.AhAttr), PathMTU: MTU(r.PathMtu), DestQPNum: r.DestQpNum,
		RecvPSN: r.RqPsn, SendPSN: r.SqPsn, MinRNRTimer: rnrTimerOf(r.MinRnrTimer),
		Timeout: timeoutOf(r.Timeout), RetryCount: int(r.RetryCnt), RNRRetryCount: int(r.RnrRetry),
		MaxReadAtomic: int(r.MaxRdAtomic), MaxDestReadAtomic: int(r.MaxDestRdAtomic),
		Migration: r.PathMigState, AltPath: ahAttrOf(&r.AltAhAttr), AltPKeyIndex: int(r.AltPkeyIndex),
		AltTimeout: timeoutOf(r.AltTimeout), RateLimit: r.RateLimit, Cap: qpCapOf(r.Cap),
	}
}
