package ibverbs

import (
	"cmp"
	"time"
)

// Init says how to initialise a queue pair.
type Init struct {
	Port      int         // from 1; needed
	PKeyIndex int         // of the partition, in the port's table; not for raw packets
	Access    AccessFlags // what the peer may do; not for datagrams and raw packets
	QKey      uint32      // which datagrams must carry; for datagrams alone
}

// RTR says how to make a queue pair ready to receive. Datagrams and raw packets
// need none of it.
type RTR struct {
	Path      AHAttr // to the peer; needed
	PathMTU   MTU    // needed, the same at both ends
	DestQPNum uint32 // the peer's queue pair; needed
	RecvPSN   uint32 // the peer's SendPSN, 24 bits

	// For the end of a reliable connection that answers.

	MaxDestReadAtomic int           // RDMA reads and atomics that the peer may have under way
	MinRNRTimer       time.Duration // how long the peer waits if there is no receive, up to 655.36 ms, rounded up; the zero value is 0.64 ms
}

// RTS says how to make a queue pair ready to send.
type RTS struct {
	SendPSN uint32 // of the first packet, 24 bits; not for raw packets

	// For the end of a reliable connection that asks.

	Timeout       time.Duration // for an acknowledgement, rounded up to 4.096 us * 2^n, or NoTimeout; the zero value is 67 ms
	RetryCount    int           // tries after a timeout, up to 7, which Soft-RoCE takes for endless; the zero value is 6, negative is none
	RNRRetryCount int           // tries while the peer has no receive, up to 7; the zero value is RNRRetryForever, negative is none
	MaxReadAtomic int           // RDMA reads and atomics under way, within the peer's MaxDestReadAtomic
}

// ToInit moves the queue pair from reset to the init state, in which receives
// can be posted; see ibv_modify_qp(3). It returns a *TransitionError if the type
// needs more than init has, or less.
func (qp *QP) ToInit(init Init) error {
	return qp.move(QPStateReset, QPAttr{
		State: QPStateInit, Port: init.Port, PKeyIndex: init.PKeyIndex, Access: init.Access, QKey: init.QKey,
	}, when(init.Port != 0, QPAttrPort)|when(init.PKeyIndex != 0, QPAttrPKeyIndex)|
		when(init.Access != 0, QPAttrAccess)|when(init.QKey != 0, QPAttrQKey),
		QPAttrPKeyIndex|QPAttrAccess|QPAttrQKey)
}

// ToRTR makes the queue pair, which must be in the init state, ready to
// receive; see ibv_modify_qp(3). It returns a *TransitionError if the type needs
// more than rtr has, or less. On RoCE it may take seconds, as Modify says, and an
// error that nobody answers there names both ends of the path.
func (qp *QP) ToRTR(rtr RTR) error {
	return qp.move(QPStateInit, QPAttr{
		State: QPStateRTR, Path: rtr.Path, PathMTU: rtr.PathMTU, DestQPNum: rtr.DestQPNum, RecvPSN: rtr.RecvPSN,
		MaxDestReadAtomic: rtr.MaxDestReadAtomic, MinRNRTimer: cmp.Or(rtr.MinRNRTimer, defaultRNRTimer),
	}, when(rtr.Path != AHAttr{}, QPAttrPath)|when(rtr.PathMTU != 0, QPAttrPathMTU)|
		when(rtr.DestQPNum != 0, QPAttrDestQPNum)|when(rtr.RecvPSN != 0, QPAttrRecvPSN)|
		when(rtr.MaxDestReadAtomic != 0, QPAttrMaxDestReadAtomic)|when(rtr.MinRNRTimer != 0, QPAttrMinRNRTimer),
		QPAttrRecvPSN|QPAttrMaxDestReadAtomic|QPAttrMinRNRTimer)
}

// ToRTS makes the queue pair, which must be ready to receive, ready to send; see
// ibv_modify_qp(3). It returns a *TransitionError if the type needs more than
// rts has, or less.
func (qp *QP) ToRTS(rts RTS) error {
	return qp.move(QPStateRTR, QPAttr{
		State: QPStateRTS, SendPSN: rts.SendPSN, Timeout: cmp.Or(rts.Timeout, defaultTimeout),
		RetryCount:    countOr(rts.RetryCount, defaultRetryCount),
		RNRRetryCount: countOr(rts.RNRRetryCount, defaultRNRRetryCount), MaxReadAtomic: rts.MaxReadAtomic,
	}, when(rts.SendPSN != 0, QPAttrSendPSN)|when(rts.Timeout != 0, QPAttrTimeout)|
		when(rts.RetryCount != 0, QPAttrRetryCount)|when(rts.RNRRetryCount != 0, QPAttrRNRRetryCount)|
		when(rts.MaxReadAtomic != 0, QPAttrMaxReadAtomic),
		QPAttrSendPSN|QPAttrTimeout|QPAttrRetryCount|QPAttrRNRRetryCount|QPAttrMaxReadAtomic)
}

// ToSQD stops the queue pair from sending what is posted from now on, so that
// its attributes can be changed; Resume ends that. With notify an asynchronous
// event, EventSQDrained, says when what is under way has completed. Not every
// device has this state. See ibv_modify_qp(3).
func (qp *QP) ToSQD(notify bool) error {
	return qp.move(QPStateRTS, QPAttr{State: QPStateSQD, NotifyDrained: notify}, when(notify, QPAttrNotifyDrained), 0)
}

// Resume makes a queue pair that was stopped by ToSQD, or by a failed request
// of an unreliable one, ready to send again; see ibv_modify_qp(3).
func (qp *QP) Resume() error { return qp.move(QPStateSQD, QPAttr{State: QPStateRTS}, 0, 0) }

// ToReset moves the queue pair from any state to the reset state. Everything
// that is posted is forgotten, and gives no completion. See ibv_modify_qp(3).
func (qp *QP) ToReset() error { return qp.move(0, QPAttr{State: QPStateReset}, 0, 0) }

// SetError moves the queue pair into the error state: everything that is
// posted completes as flushed, and what is posted from now on too. See
// ibv_modify_qp(3).
func (qp *QP) SetError() error { return qp.move(0, QPAttr{State: QPStateError}, 0, 0) }

func when(given bool, bit QPAttrMask) QPAttrMask {
	if given {
		return bit
	}
	return 0
}

// move changes the state and the attributes that are given, together with
// those that the type requires and whose zero value means something.
func (qp *QP) move(from QPState, attr QPAttr, given, zeros QPAttrMask) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	required := transitions[transition{from, attr.State}][qp.Type()].required
	return qp.Modify(attr, QPAttrState|given|required&zeros)
}
