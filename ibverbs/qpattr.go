// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"math"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// MigState is the state of a queue pair's migration to its alternate path.
type MigState = libibverbs.MigState

// The states of path migration.
const (
	Migrated       MigState = libibverbs.IBV_MIG_MIGRATED // the alternate path is in use, or there is none
	MigrationRearm MigState = libibverbs.IBV_MIG_REARM    // waiting to arm the alternate path
	MigrationArmed MigState = libibverbs.IBV_MIG_ARMED    // ready to change to the alternate path
)

// QPAttr holds the attributes of a queue pair, for Modify and from Query.
// Numbers have the host's byte order.
type QPAttr struct {
	State         QPState
	CurState      QPState // for Modify: state that the device is to take for the current one
	NotifyDrained bool    // for Modify to SQD: whether an event reports that the queue is drained
	Draining      bool    // from Query: whether requests are still in progress
	Access        AccessFlags
	Port          int // counts from 1
	PKeyIndex     int
	QKey          uint32 // key of datagrams

	Path        AHAttr // path to the peer
	PathMTU     MTU
	DestQPNum   uint32 // number of the peer's queue pair, 24 bits
	RecvPSN     uint32 // sequence number of the first packet to receive, 24 bits
	SendPSN     uint32 // sequence number of the first packet to send, 24 bits
	MinRNRTimer time.Duration

	// Timeout is how long to wait for an acknowledgement: NoTimeout, or 8.192
	// us to 2.4 hours, rounded up to 4.096 us * 2^n. RetryCount is how often to
	// retry after a timeout, at most 7. RNRRetryCount is how often to retry
	// while the peer has no receive posted, at most 6, or RNRRetryForever.
	Timeout       time.Duration
	RetryCount    int
	RNRRetryCount int

	MaxReadAtomic     int // RDMA reads and atomics in progress to the peer
	MaxDestReadAtomic int // RDMA reads and atomics in progress from the peer

	Migration    MigState
	AltPath      AHAttr
	AltPKeyIndex int
	AltTimeout   time.Duration

	RateLimit uint32 // kilobits per second, for Modify; 0 means no limit
	Cap       QPCap  // sizes of the queues, from Query
}

// raw returns the attributes in mask in C's form.
func (a *QPAttr) raw(mask QPAttrMask) (libibverbs.QpAttr, error) {
	r := libibverbs.QpAttr{
		QpState: a.State, CurQpState: a.CurState, PathMtu: libibverbs.Mtu(a.PathMTU), PathMigState: a.Migration,
		Qkey: a.QKey, RqPsn: a.RecvPSN, SqPsn: a.SendPSN, DestQpNum: a.DestQPNum, QpAccessFlags: a.Access,
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
	number(QPAttrPathMTU, "path MTU", int(a.PathMTU), int(MTU256), int(MTU4096))
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

// QPAttrFromRaw converts attributes of a queue pair from C's form. It returns
// the zero value for nil.
func QPAttrFromRaw(r *libibverbs.QpAttr) QPAttr {
	if r == nil {
		return QPAttr{}
	}
	return QPAttr{
		State: r.QpState, CurState: r.CurQpState, NotifyDrained: r.EnSqdAsyncNotify != 0, Draining: r.SqDraining != 0,
		Access: r.QpAccessFlags, Port: int(r.PortNum), PKeyIndex: int(r.PkeyIndex), QKey: r.Qkey,
		Path: AHAttrFromRaw(&r.AhAttr), PathMTU: MTU(r.PathMtu), DestQPNum: r.DestQpNum,
		RecvPSN: r.RqPsn, SendPSN: r.SqPsn, MinRNRTimer: rnrTimerOf(r.MinRnrTimer),
		Timeout: timeoutOf(r.Timeout), RetryCount: int(r.RetryCnt), RNRRetryCount: int(r.RnrRetry),
		MaxReadAtomic: int(r.MaxRdAtomic), MaxDestReadAtomic: int(r.MaxDestRdAtomic),
		Migration: r.PathMigState, AltPath: AHAttrFromRaw(&r.AltAhAttr), AltPKeyIndex: int(r.AltPkeyIndex),
		AltTimeout: timeoutOf(r.AltTimeout), RateLimit: r.RateLimit, Cap: qpCapOf(r.Cap),
	}
}

// transition is a change from one state to another, or within one state.
type transition struct{ from, to QPState }

// attrs holds the attributes that a transition requires or allows, besides the
// state.
type attrs struct{ required, optional QPAttrMask }

// Sets of attributes that many transitions share.
const (
	connInit = QPAttrPKeyIndex | QPAttrPort | QPAttrAccess
	udInit   = QPAttrPKeyIndex | QPAttrPort | QPAttrQKey
	connPath = QPAttrPath | QPAttrPathMTU | QPAttrDestQPNum | QPAttrRecvPSN
	answers  = QPAttrMaxDestReadAtomic | QPAttrMinRNRTimer // attributes that a responder needs
	retries  = QPAttrTimeout | QPAttrRetryCount | QPAttrRNRRetryCount | QPAttrMaxReadAtomic

	rtrConn = QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex
	rtsUD   = QPAttrCurState | QPAttrQKey
	rtsConn = QPAttrCurState | QPAttrAltPath | QPAttrAccess | QPAttrMigration
	rtsRecv = rtsConn | QPAttrMinRNRTimer
	sqdConn = QPAttrPath | QPAttrAltPath | QPAttrAccess | QPAttrPKeyIndex | QPAttrMigration
)

// rts holds the attributes that may change in the state RTS and in transitions
// to it.
var rts = map[QPType]attrs{
	QPTypeRC:      {optional: rtsRecv},
	QPTypeUC:      {optional: rtsConn},
	QPTypeUD:      {optional: rtsUD},
	QPTypeXRCSend: {optional: rtsConn},
	QPTypeXRCRecv: {optional: rtsRecv},
}

// transitions lists the transitions of the InfiniBand specification, with the
// attributes that ibv_modify_qp(3) requires and the kernel checks. It omits
// those to the reset and error states, which are possible from every state
// without other attributes. A type that is not listed has no attributes but the
// state.
var transitions = map[transition]map[QPType]attrs{
	{QPStateReset, QPStateInit}: {
		QPTypeRC:        {required: connInit},
		QPTypeUC:        {required: connInit},
		QPTypeUD:        {required: udInit},
		QPTypeRawPacket: {required: QPAttrPort},
		QPTypeXRCSend:   {required: connInit},
		QPTypeXRCRecv:   {required: connInit},
	},
	{QPStateInit, QPStateInit}: {
		QPTypeRC:      {optional: connInit},
		QPTypeUC:      {optional: connInit},
		QPTypeUD:      {optional: udInit},
		QPTypeXRCSend: {optional: connInit},
		QPTypeXRCRecv: {optional: connInit},
	},
	{QPStateInit, QPStateRTR}: {
		QPTypeRC:      {required: connPath | answers, optional: rtrConn},
		QPTypeUC:      {required: connPath, optional: rtrConn},
		QPTypeUD:      {optional: QPAttrPKeyIndex | QPAttrQKey},
		QPTypeXRCSend: {required: connPath, optional: rtrConn},
		QPTypeXRCRecv: {required: connPath | answers, optional: rtrConn},
	},
	{QPStateRTR, QPStateRTS}: {
		QPTypeRC:      {required: QPAttrSendPSN | retries, optional: rtsRecv},
		QPTypeUC:      {required: QPAttrSendPSN, optional: rtsConn},
		QPTypeUD:      {required: QPAttrSendPSN, optional: rtsUD},
		QPTypeXRCSend: {required: QPAttrSendPSN | retries, optional: rtsConn},
		QPTypeXRCRecv: {required: QPAttrSendPSN | QPAttrTimeout, optional: rtsRecv},
	},
	{QPStateRTS, QPStateRTS}: rts,
	{QPStateSQD, QPStateRTS}: rts,
	{QPStateSQE, QPStateRTS}: {
		QPTypeUC: {optional: QPAttrCurState | QPAttrAccess},
		QPTypeUD: {optional: rtsUD},
	},
	{QPStateRTS, QPStateSQD}: {
		QPTypeRC:      {optional: QPAttrNotifyDrained},
		QPTypeUC:      {optional: QPAttrNotifyDrained},
		QPTypeUD:      {optional: QPAttrNotifyDrained},
		QPTypeXRCSend: {optional: QPAttrNotifyDrained},
		QPTypeXRCRecv: {optional: QPAttrNotifyDrained},
	},
	{QPStateSQD, QPStateSQD}: {
		QPTypeRC:      {optional: sqdConn | QPAttrPort | retries | answers},
		QPTypeUC:      {optional: sqdConn},
		QPTypeUD:      {optional: QPAttrPKeyIndex | QPAttrQKey},
		QPTypeXRCSend: {optional: sqdConn | QPAttrPort | retries},
		QPTypeXRCRecv: {optional: sqdConn | QPAttrPort | QPAttrTimeout | answers},
	},
}

// QPAttrMask selects attributes of a queue pair; combine them with |.
type QPAttrMask = libibverbs.QpAttrMask

// The attributes of a queue pair. Each selects the field of QPAttr with its
// name.
const (
	QPAttrState             QPAttrMask = libibverbs.IBV_QP_STATE
	QPAttrCurState          QPAttrMask = libibverbs.IBV_QP_CUR_STATE
	QPAttrNotifyDrained     QPAttrMask = libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY
	QPAttrAccess            QPAttrMask = libibverbs.IBV_QP_ACCESS_FLAGS
	QPAttrPKeyIndex         QPAttrMask = libibverbs.IBV_QP_PKEY_INDEX
	QPAttrPort              QPAttrMask = libibverbs.IBV_QP_PORT
	QPAttrQKey              QPAttrMask = libibverbs.IBV_QP_QKEY
	QPAttrPath              QPAttrMask = libibverbs.IBV_QP_AV
	QPAttrPathMTU           QPAttrMask = libibverbs.IBV_QP_PATH_MTU
	QPAttrTimeout           QPAttrMask = libibverbs.IBV_QP_TIMEOUT
	QPAttrRetryCount        QPAttrMask = libibverbs.IBV_QP_RETRY_CNT
	QPAttrRNRRetryCount     QPAttrMask = libibverbs.IBV_QP_RNR_RETRY
	QPAttrRecvPSN           QPAttrMask = libibverbs.IBV_QP_RQ_PSN
	QPAttrMaxReadAtomic     QPAttrMask = libibverbs.IBV_QP_MAX_QP_RD_ATOMIC
	QPAttrAltPath           QPAttrMask = libibverbs.IBV_QP_ALT_PATH // AltPath, AltPKeyIndex and AltTimeout
	QPAttrMinRNRTimer       QPAttrMask = libibverbs.IBV_QP_MIN_RNR_TIMER
	QPAttrSendPSN           QPAttrMask = libibverbs.IBV_QP_SQ_PSN
	QPAttrMaxDestReadAtomic QPAttrMask = libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC
	QPAttrMigration         QPAttrMask = libibverbs.IBV_QP_PATH_MIG_STATE
	QPAttrDestQPNum         QPAttrMask = libibverbs.IBV_QP_DEST_QPN
	QPAttrRateLimit         QPAttrMask = libibverbs.IBV_QP_RATE_LIMIT
)

// attrNames gives the member of struct ibv_qp_attr for each bit of a mask.
var attrNames = [...]string{
	"qp_state", "cur_qp_state", "en_sqd_async_notify", "qp_access_flags", "pkey_index", "port_num", "qkey", "ah_attr",
	"path_mtu", "timeout", "retry_cnt", "rnr_retry", "rq_psn", "max_rd_atomic", "alt_ah_attr", "min_rnr_timer",
	"sq_psn", "max_dest_rd_atomic", "path_mig_state", "cap", "dest_qp_num",
	25: "rate_limit",
}

// NoTimeout is the timeout of a queue pair that waits forever.
const NoTimeout time.Duration = math.MaxInt64

// RNRRetryForever is the retry count of a queue pair that retries forever while
// the peer has no receive posted.
const RNRRetryForever = 7

// timeoutUnit is 4.096 us in nanoseconds. By the formula of timeoutCode, code 0
// would stand for this time, but code 0 means no timeout.
const timeoutUnit = 4096

// timeoutCode returns the code n of the shortest timeout 4.096 us * 2^n that is
// at least d.
func timeoutCode(d time.Duration) (uint8, error) {
	if d == NoTimeout {
		return 0, nil
	}
	for n := uint8(1); n < 32; n++ {
		if d <= timeoutUnit<<n {
			return n, checkPositive(d)
		}
	}
	return 0, cerr.Invalid("timeout is %v, more than %v", d, time.Duration(timeoutUnit<<31))
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
		return cerr.Invalid("timeout is %v, not positive", d)
	}
	return nil
}

// rnrTimers lists the delays of the codes from 1 on, in units of 10 us. The
// last entry is the delay of code 0, which is the longest.
var rnrTimers = [...]time.Duration{
	1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
	2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536,
}

const rnrUnit = 10 * time.Microsecond

// rnrTimerCode returns the code for libibverbs.QpAttr.MinRnrTimer of the
// shortest delay, from 10 us to 655.36 ms, that is at least d. Code 0 stands
// for the longest delay.
func rnrTimerCode(d time.Duration) (uint8, error) {
	if d < 0 {
		return 0, cerr.Invalid("RNR timer is %v, not from 0 to %v", d, rnrTimers[31]*rnrUnit)
	}
	for i, t := range rnrTimers {
		if d <= t*rnrUnit {
			return uint8(i+1) % 32, nil
		}
	}
	return 0, cerr.Invalid("RNR timer is %v, not from 0 to %v", d, rnrTimers[31]*rnrUnit)
}

// rnrTimerOf is the reverse of rnrTimerCode.
func rnrTimerOf(code uint8) time.Duration { return rnrTimers[(code+31)%32] * rnrUnit }
