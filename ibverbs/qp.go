// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/batchmem"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/object"
)

// QP is a queue pair: a queue of send requests and a queue of receives. Its
// methods may be called concurrently.
type QP struct {
	object  object.Object
	device  *Device
	pd      *PD // nil if XRCD.OpenQP opened the queue pair
	raw     *libibverbs.Qp
	num     uint32
	typ     QPType
	destroy func() error
	cap     QPCap

	// sendOps holds the requests that can be posted through the ibv_wr
	// functions. If it is 0, ex is nil.
	sendOps libibverbs.QpCreateSendOpsFlags
	ex      *libibverbs.QpEx

	// state is held while the queue pair's state is changed or queried. C
	// records the state after each of these calls, and an old answer must
	// not replace a newer state.
	state sync.Mutex

	groups groups

	failure atomic.Pointer[EventType] // first fatal event, or nil

	lastWQE     chan struct{} // closed when EventLastWQEReached has come; nil for a queue pair without shared receive queues
	lastWQEOnce sync.Once
}

// LastWQEReached returns a channel that is closed when a queue pair with a
// shared receive queue, or one of type QPTypeXRCRecv, has reported
// EventLastWQEReached: in the error state, it takes no more receives, and those
// that it has taken are in the completion queue. Wait for that, and take the
// completions, before Close; otherwise a receive that the queue pair has taken
// may be lost. Give the wait a time limit, because not every device reports it:
// Soft-RoCE does from Linux 6.12 on. The channel is nil for other queue pairs.
// See ibv_modify_qp(3).
func (qp *QP) LastWQEReached() <-chan struct{} {
	if qp == nil {
		return nil
	}
	return qp.lastWQE
}

// reachedLastWQE records that the queue pair has reported EventLastWQEReached.
func (qp *QP) reachedLastWQE() {
	if qp.lastWQE != nil {
		qp.lastWQEOnce.Do(func() { close(qp.lastWQE) })
	}
}

// Failure returns the queue pair's first fatal event (see EventType.Fatal), and
// whether there was one. After a fatal event the queue pair can do nothing
// more. Many devices report one if the peer makes an illegal request. Resetting
// the queue pair does not clear the event.
func (qp *QP) Failure() (EventType, bool) {
	if qp == nil {
		return 0, false
	}
	event := qp.failure.Load()
	if event == nil {
		return 0, false
	}
	return *event, true
}

// CreateQP creates a queue pair in the reset state; see ibv_create_qp(3) and
// ibv_create_qp_ex(3). It fails with an error matching errors.ErrUnsupported if
// the device lacks something that the config asks for.
func (pd *PD) CreateQP(config QPConfig) (*QP, error) {
	if err := config.notDriver(pd); err != nil {
		return nil, err
	}
	return pd.newQP(config, func(attr *libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error) {
		raw, err := pd.createQP(attr)
		return raw, func() error { return libibverbs.DestroyQp(raw) }, err
	})
}

const opCreateQP = "ibv_create_qp"

func (pd *PD) createQP(attr *libibverbs.QpInitAttrEx) (*libibverbs.Qp, error) {
	if attr.CompMask != libibverbs.IBV_QP_INIT_ATTR_PD {
		return libibverbs.CreateQpEx(pd.device.raw, attr)
	}
	basic := libibverbs.QpInitAttr{
		SendCq: attr.SendCq, RecvCq: attr.RecvCq, Srq: attr.Srq, Cap: attr.Cap,
		QpType: attr.QpType, SqSigAll: attr.SqSigAll,
	}
	raw, err := libibverbs.CreateQp(pd.raw, &basic)
	attr.Cap = basic.Cap
	return raw, err
}

// newQP makes a queue pair. create returns the C object and a function that
// destroys it.
func (pd *PD) newQP(config QPConfig, create func(*libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error)) (*QP, error) {
	parents, contexts := config.parents()
	parents = append([]*object.Object{pd.self()}, parents...)
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := config.check(); err != nil {
		return nil, cerr.Argument(opCreateQP, pd.object.Name(), err)
	}
	for i, c := range contexts {
		if err := sameDevice(opCreateQP, pd.object.Name(), pd.device.raw, parents[i+1], c.raw); err != nil {
			return nil, err
		}
	}
	attr, err := config.initAttrEx(pd)
	if err != nil {
		return nil, err
	}
	if config.MaxInline > 0 && pd.device.sendsNoInline() {
		return nil, cerr.Argument(opCreateQP, pd.object.Name(), cerr.InvalidAs(syscall.EINVAL,
			"MaxInline is %d, and the driver of %s has no inline data", config.MaxInline, pd.device.Name()))
	}
	raw, destroy, err := create(&attr)
	if err != nil {
		err = pd.device.explain(err, queuePairs, leastRequest*(config.SendQueue+config.RecvQueue))
		if errors.Is(err, syscall.EOPNOTSUPP) && config.qpType() != QPTypeRC && pd.device.isIWARP() {
			setHint(err, pd.device.Name()+" uses iWARP, which has only reliable connections")
		}
		return nil, pd.device.tooMuch(err, pd.object.Name(), config.sizes)
	}
	qp := &QP{device: pd.device, pd: pd, raw: raw, destroy: destroy, cap: qpCapOf(attr.Cap), sendOps: config.SendOps}
	if config.SendOps != 0 {
		if qp.ex, err = libibverbs.QpToQpEx(raw); err == nil && qp.ex == nil {
			err = &Error{Op: "ibv_qp_to_qp_ex", Object: pd.object.Name(), Errno: syscall.EOPNOTSUPP}
		}
		if err != nil {
			return nil, errors.Join(err, destroy())
		}
	}
	if config.SRQ != nil || config.Type == QPTypeXRCRecv {
		qp.lastWQE = make(chan struct{})
	}
	qp.init(parents...)
	return qp, nil
}

// init completes qp and makes it known. The parents are in use.
func (qp *QP) init(parents ...*object.Object) {
	qp.num, qp.typ = qp.raw.QpNum, qp.raw.QpType
	qp.object.Init(fmt.Sprintf("QP %d of %s", qp.num, qp.device.Name()), parents...)
	register(unsafe.Pointer(qp.raw), qp)
}

// Num returns the queue pair's number, by which peers address it.
func (qp *QP) Num() uint32 { return qp.num }

// Type returns the type of the queue pair.
func (qp *QP) Type() QPType { return qp.typ }

// Cap returns how much the queue pair can hold, which is at least what its
// config asked for.
func (qp *QP) Cap() QPCap { return qp.cap }

// SendOps returns the requests that can be posted through the ibv_wr functions.
func (qp *QP) SendOps() SendOpsFlags { return qp.sendOps }

// Device returns the device that the queue pair belongs to.
func (qp *QP) Device() *Device { return qp.device }

// PD returns the protection domain of the queue pair, or nil if XRCD.OpenQP
// opened it.
func (qp *QP) PD() *PD { return qp.pd }

// Raw returns the C object, which is valid until Close.
func (qp *QP) Raw() *libibverbs.Qp { return qp.raw }

// Close detaches the queue pair from its multicast groups and destroys it; see
// ibv_destroy_qp(3). Requests that are still in progress never complete. If C
// refuses to destroy the queue pair, it stays usable, but outside the groups.
func (qp *QP) Close() error {
	return qp.self().Close(nil, func() error {
		if err := qp.leaveAll(); err != nil {
			return err
		}
		unregister(unsafe.Pointer(qp.raw))
		if err := qp.device.unlessRemoved(qp.destroy()); err != nil {
			register(unsafe.Pointer(qp.raw), qp)
			return wrap(qp.object.Name(), err)
		}
		qp.device.forgetEvents(qp, EventClassQP, qp.num)
		return nil
	})
}

// TransitionError reports a change of a queue pair's attributes that C would
// refuse: the state transition does not exist, or it needs other attributes. It
// matches syscall.EINVAL. The queue pair is unchanged.
type TransitionError struct {
	QP         string // name of the queue pair
	Type       QPType
	From, To   QPState
	Missing    QPAttrMask // attributes that the transition requires
	NotAllowed QPAttrMask // attributes that the transition does not allow
}

// Error names the queue pair and the transition. It names the attributes that
// are missing or not allowed as in C's struct ibv_qp_attr.
func (e *TransitionError) Error() string {
	s := fmt.Sprintf("ibv_modify_qp (%s): %s %s -> %s: ", e.QP,
		strings.TrimPrefix(e.Type.String(), "IBV_QPT_"), stateName(e.From), stateName(e.To))
	if e.Missing == 0 && e.NotAllowed == 0 {
		return s + "no such transition; the states after " + stateName(e.From) + " are " + strings.Join(next(e.From), ", ")
	}
	var parts []string
	if e.Missing != 0 {
		parts = append(parts, "missing "+names(e.Missing))
	}
	if e.NotAllowed != 0 {
		parts = append(parts, "not allowed: "+names(e.NotAllowed))
	}
	return s + strings.Join(parts, "; ")
}

// Unwrap returns syscall.EINVAL.
func (e *TransitionError) Unwrap() error { return syscall.EINVAL }

// checkTransition returns nil if the attributes in mask may change in the
// transition between the states.
func checkTransition(t QPType, from, to QPState, mask QPAttrMask) *TransitionError {
	e := &TransitionError{Type: t, From: from, To: to}
	types, ok := transitions[transition{from, to}]
	if !ok && to != QPStateReset && to != QPStateError {
		return e
	}
	a := types[t]
	e.Missing = a.required &^ mask
	// Kernels differ about the rate limit, so the device decides.
	e.NotAllowed = mask &^ (a.required | a.optional | QPAttrState | QPAttrRateLimit)
	if e.Missing == 0 && e.NotAllowed == 0 {
		return nil
	}
	return e
}

// stateName returns a name such as "rtr".
func stateName(s QPState) string {
	if s == QPStateError {
		return "error"
	}
	return strings.ToLower(strings.TrimPrefix(s.String(), "IBV_QPS_"))
}

// next returns the names of the states that may follow a state.
func next(from QPState) []string {
	var states []string
	for to := QPStateReset; to <= QPStateError; to++ {
		_, ok := transitions[transition{from, to}]
		if ok || to == QPStateReset || to == QPStateError {
			states = append(states, stateName(to))
		}
	}
	return states
}

// names returns C's names of the attributes, separated by commas.
func names(mask QPAttrMask) string {
	var s []string
	for rest := uint32(mask); rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros32(rest)
		if i < len(attrNames) && attrNames[i] != "" {
			s = append(s, attrNames[i])
		} else {
			s = append(s, fmt.Sprintf("%#x", uint32(1)<<i))
		}
	}
	return strings.Join(s, ", ")
}

// Modify changes the attributes in mask; see ibv_modify_qp(3). It fails with a
// *TransitionError if the queue pair's state does not allow the change or the
// change needs other attributes, and with an error matching syscall.EINVAL if
// an attribute in mask is out of range. On RoCE, setting a path may block an OS
// thread for seconds, while the kernel resolves the peer's hardware address.
func (qp *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	raw, err := attr.raw(mask)
	if err != nil {
		return cerr.Argument("ibv_modify_qp", qp.object.Name(), err)
	}
	return qp.modify(&raw, mask)
}

// modify changes attributes like Modify, but takes them in C's form.
func (qp *QP) modify(attr *libibverbs.QpAttr, mask QPAttrMask) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	// The state that C recorded may be out of date, because errors change
	// the state too. So a change that it does not allow is refused only if
	// the device's answer does not allow it either.
	if qp.refusal(qp.noted(), attr, mask) != nil {
		if err := qp.refusalNow(attr, mask); err != nil {
			return err
		}
	}
	err := libibverbs.ModifyQp(qp.raw, attr, mask)
	if errors.Is(err, syscall.EINVAL) {
		if why := qp.refusalNow(attr, mask); why != nil {
			return why
		}
	}
	name := qp.object.Name()
	if mask&QPAttrPath != 0 {
		name = towards(name, &attr.AhAttr, err)
	}
	return wrap(name, err)
}

// noted returns the state that C recorded after its last call for the queue
// pair, which another library may have made.
func (qp *QP) noted() QPState {
	return QPState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&qp.raw.State))))
}

// refusal returns the reason why the change is not possible in the state from,
// or nil. The tables describe InfiniBand and RoCE; other transports, and the
// types of drivers, have rules of their own.
func (qp *QP) refusal(from QPState, attr *libibverbs.QpAttr, mask QPAttrMask) *TransitionError {
	if qp.device.raw.Device.TransportType != libibverbs.IBV_TRANSPORT_IB || qp.typ == typeDriver {
		return nil
	}
	if mask&QPAttrCurState != 0 {
		from = attr.CurQpState // the device takes CurQpState for the current state
	}
	to := from
	if mask&QPAttrState != 0 {
		to = attr.QpState
	}
	e := checkTransition(qp.Type(), from, to, mask)
	if e != nil {
		e.QP = qp.object.Name()
	}
	return e
}

// refusalNow returns the reason why the change is not possible in the state
// that the device reports, or nil. If the device reports no state, refusalNow
// returns nil and so leaves the decision to the device.
func (qp *QP) refusalNow(attr *libibverbs.QpAttr, mask QPAttrMask) error {
	now, err := qp.askState()
	if err != nil {
		return nil
	}
	if e := qp.refusal(now, attr, mask); e != nil {
		return e
	}
	return nil
}

// askState asks the device for the state. The caller holds qp.state.
func (qp *QP) askState() (QPState, error) {
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	if err := libibverbs.QueryQp(qp.raw, &attr, libibverbs.IBV_QP_STATE, &init); err != nil {
		return 0, wrap(qp.object.Name(), err)
	}
	return attr.QpState, nil
}

// queried holds the attributes that can be queried: all but the rate limit.
const queried = libibverbs.IBV_QP_DEST_QPN<<1 - 1

// queriedOfDatagrams holds the attributes that datagrams need.
const queriedOfDatagrams = libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT |
	libibverbs.IBV_QP_QKEY | libibverbs.IBV_QP_SQ_PSN | libibverbs.IBV_QP_CAP

// Query asks the device for the queue pair's attributes; see ibv_query_qp(3).
// Attributes that the type or state lacks have no meaning. Query waits for a
// Modify in progress. It fails with an error matching errors.ErrUnsupported if
// the device's driver cannot tell, such as Microsoft's for MANA.
func (qp *QP) Query() (QPAttr, error) {
	if err := qp.self().Use(); err != nil {
		return QPAttr{}, err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	err := libibverbs.QueryQp(qp.raw, &attr, queried, &init)
	if errors.Is(err, errors.ErrUnsupported) { // AWS's efa refuses the whole query if it asks for what connections need
		err = libibverbs.QueryQp(qp.raw, &attr, queriedOfDatagrams, &init)
	}
	if err != nil {
		return QPAttr{}, wrap(qp.object.Name(), err)
	}
	return QPAttrFromRaw(&attr), nil
}

// State asks the device for the queue pair's state; see ibv_query_qp(3). It
// waits for a Modify in progress.
func (qp *QP) State() (QPState, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	return qp.askState()
}

// RateLimit limits how fast a queue pair sends.
type RateLimit struct {
	KilobitsPerSecond uint32 // 0 means no limit
	MaxBurst          int    // maximum number of bytes sent at once; 0 means that the device chooses
	TypicalPacket     int    // bytes, a hint to the device; 0 means unknown
}

// SetRateLimit limits how fast the queue pair sends; see
// ibv_modify_qp_rate_limit(3). The queue pair must be ready to send, or about
// to become so. Few devices can do this; with the others it fails with an error
// matching errors.ErrUnsupported.
func (qp *QP) SetRateLimit(limit RateLimit) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if limit.MaxBurst < 0 || int64(limit.MaxBurst) > math.MaxUint32 ||
		limit.TypicalPacket < 0 || limit.TypicalPacket > math.MaxUint16 {
		return cerr.Refuse("ibv_modify_qp_rate_limit", qp.object.Name(), "MaxBurst is %d and TypicalPacket is %d, not from 0 to %d and from 0 to %d",
			limit.MaxBurst, limit.TypicalPacket, uint32(math.MaxUint32), math.MaxUint16)
	}
	attr := libibverbs.QpRateLimitAttr{
		RateLimit: limit.KilobitsPerSecond, MaxBurstSz: uint32(limit.MaxBurst), TypicalPktSz: uint16(limit.TypicalPacket),
	}
	return wrap(qp.object.Name(), libibverbs.ModifyQpRateLimit(qp.raw, &attr))
}

// DataInOrder says in which order received data appears in memory.
type DataInOrder = libibverbs.QueryQpDataInOrderCaps

// The orders of received data. With neither, only a completion says that the
// data has arrived.
const (
	DataInOrderMessage DataInOrder = libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG         // in order throughout the message
	DataInOrder128     DataInOrder = libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES // in order within aligned blocks of 128 bytes
)

// DataInOrder returns in which order data from the peer's requests of kind op
// appears in memory; see ibv_query_qp_data_in_order(3). Package libibverbs has
// the names of the kinds, such as IBV_WR_RDMA_WRITE. If data appears in order,
// a program may poll the memory instead of the completion queue. DataInOrder
// returns 0 if the order is undefined or the device does not know it. It needs
// rdma-core 36.
func (qp *QP) DataInOrder(op libibverbs.WrOpcode) (DataInOrder, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	caps, err := libibverbs.QueryQpDataInOrder(qp.raw, op, libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS)
	return DataInOrder(caps), wrap(qp.object.Name(), err)
}

// InitAttr holds the attributes that ToInit sets.
type InitAttr struct {
	Port      int         // port, counted from 1; required
	PKeyIndex int         // index in the port's P_Key table; not for raw packets
	Access    AccessFlags // what the peer may do; not for datagrams or raw packets
	QKey      uint32      // key that received datagrams must carry; only for datagrams
}

// RTRAttr holds the attributes that ToRTR sets. Queue pairs for datagrams and
// raw packets need none of them.
type RTRAttr struct {
	Path      AHAttr // path to the peer; required
	PathMTU   MTU    // MTU of the path, the same at both ends; required
	DestQPNum uint32 // number of the peer's queue pair; required
	RecvPSN   uint32 // the peer's SendPSN, 24 bits

	// Only for reliable connections, as the responder.
	MaxDestReadAtomic int           // RDMA reads and atomics that the peer may have in progress; 0 means none
	MinRNRTimer       time.Duration // how long the peer waits if no receive is posted, at most 655.36 ms; rounded up; 0 means 0.64 ms
}

// RTSAttr holds the attributes that ToRTS sets.
type RTSAttr struct {
	SendPSN uint32 // sequence number of the first packet, 24 bits; not for raw packets

	// Only for reliable connections, as the requester.
	Timeout       time.Duration // how long to wait for an acknowledgement, or NoTimeout; rounded up to 4.096 us * 2^n; 0 means 67 ms
	RetryCount    int           // retries after a timeout, at most 7 (forever on Soft-RoCE); 0 means 6; negative means none
	RNRRetryCount int           // retries while the peer has no receive posted, at most 7; 0 means RNRRetryForever; negative means none
	MaxReadAtomic int           // RDMA reads and atomics in progress, at most the peer's MaxDestReadAtomic; 0 means none
}

// ToInit moves the queue pair from the reset to the init state, in which
// receives can be posted; see ibv_modify_qp(3). It fails with a
// *TransitionError if init lacks an attribute that the type needs, or has one
// that it must not have.
func (qp *QP) ToInit(init InitAttr) error {
	return qp.move(QPStateReset, QPAttr{
		State: QPStateInit, Port: init.Port, PKeyIndex: init.PKeyIndex, Access: init.Access, QKey: init.QKey,
	}, when(init.Port != 0, QPAttrPort)|when(init.PKeyIndex != 0, QPAttrPKeyIndex)|
		when(init.Access != 0, QPAttrAccess)|when(init.QKey != 0, QPAttrQKey),
		QPAttrPKeyIndex|QPAttrAccess|QPAttrQKey)
}

// ToRTR moves the queue pair from the init state to ready to receive; see
// ibv_modify_qp(3). It fails with a *TransitionError if rtr lacks an attribute
// that the type needs, or has one that it must not have. On RoCE it may block
// an OS thread for seconds, while the kernel resolves the peer's hardware
// address. If the peer does not answer, the error names both ends of the path.
func (qp *QP) ToRTR(rtr RTRAttr) error {
	return qp.move(QPStateInit, QPAttr{
		State: QPStateRTR, Path: rtr.Path, PathMTU: rtr.PathMTU, DestQPNum: rtr.DestQPNum, RecvPSN: rtr.RecvPSN,
		MaxDestReadAtomic: rtr.MaxDestReadAtomic, MinRNRTimer: cmp.Or(rtr.MinRNRTimer, defaultRNRTimer),
	}, when(rtr.Path != AHAttr{}, QPAttrPath)|when(rtr.PathMTU != 0, QPAttrPathMTU)|
		when(rtr.DestQPNum != 0, QPAttrDestQPNum)|when(rtr.RecvPSN != 0, QPAttrRecvPSN)|
		when(rtr.MaxDestReadAtomic != 0, QPAttrMaxDestReadAtomic)|when(rtr.MinRNRTimer != 0, QPAttrMinRNRTimer),
		QPAttrRecvPSN|QPAttrMaxDestReadAtomic|QPAttrMinRNRTimer)
}

// ToRTS moves the queue pair from ready to receive to ready to send; see
// ibv_modify_qp(3). It fails with a *TransitionError if rts lacks an attribute
// that the type needs, or has one that it must not have.
func (qp *QP) ToRTS(rts RTSAttr) error {
	return qp.move(QPStateRTR, QPAttr{
		State: QPStateRTS, SendPSN: rts.SendPSN, Timeout: cmp.Or(rts.Timeout, defaultTimeout),
		RetryCount:    countOr(rts.RetryCount, defaultRetryCount),
		RNRRetryCount: countOr(rts.RNRRetryCount, defaultRNRRetryCount), MaxReadAtomic: rts.MaxReadAtomic,
	}, when(rts.SendPSN != 0, QPAttrSendPSN)|when(rts.Timeout != 0, QPAttrTimeout)|
		when(rts.RetryCount != 0, QPAttrRetryCount)|when(rts.RNRRetryCount != 0, QPAttrRNRRetryCount)|
		when(rts.MaxReadAtomic != 0, QPAttrMaxReadAtomic),
		QPAttrSendPSN|QPAttrTimeout|QPAttrRetryCount|QPAttrRNRRetryCount|QPAttrMaxReadAtomic)
}

// ToSQD stops the queue pair from starting newly posted send requests, so its
// attributes can be changed; see ibv_modify_qp(3). Resume lets it send again.
// With notify, the event EventSQDrained reports that the requests in progress
// have completed. Not every device has this state.
func (qp *QP) ToSQD(notify bool) error {
	return qp.move(QPStateRTS, QPAttr{State: QPStateSQD, NotifyDrained: notify}, when(notify, QPAttrNotifyDrained), 0)
}

// Resume makes a queue pair ready to send again after ToSQD stopped it, or, for
// an unreliable one, after a request failed; see ibv_modify_qp(3).
func (qp *QP) Resume() error { return qp.move(QPStateSQD, QPAttr{State: QPStateRTS}, 0, 0) }

// ToReset moves the queue pair from any state to the reset state; see
// ibv_modify_qp(3). It discards all posted requests, which never complete.
func (qp *QP) ToReset() error { return qp.move(0, QPAttr{State: QPStateReset}, 0, 0) }

// SetError moves the queue pair to the error state; see ibv_modify_qp(3).
// Posted requests, and those posted later, complete as flushed.
func (qp *QP) SetError() error { return qp.move(0, QPAttr{State: QPStateError}, 0, 0) }

func when(given bool, bit QPAttrMask) QPAttrMask {
	if given {
		return bit
	}
	return 0
}

// move changes the state to attr.State, and the attributes in given. It also
// sets those attributes in zeros that the queue pair's type requires for the
// transition from the state in from, even if their value in attr is zero.
func (qp *QP) move(from QPState, attr QPAttr, given, zeros QPAttrMask) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	required := transitions[transition{from, attr.State}][qp.Type()].required
	return qp.Modify(attr, QPAttrState|given|required&zeros)
}

// PostSend posts the batch's requests in one call of C and returns how many it
// posted, which is all of them unless it fails. If a request cannot be posted,
// the error is a *PostError. The batch can be changed or posted again at once.
// Memory regions must stay open until the requests that use them have
// completed, or, with SendInline, until PostSend returns.
//
// If the queue pair was made with QPConfig.SendOps, PostSend posts all requests
// or none; see ibv_wr_post(3). Otherwise it posts the requests before the one
// that fails; see ibv_post_send(3).
func (qp *QP) PostSend(b *SendBatch) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	n, err := qp.postSend(b)
	qp.object.Done() // not deferred: that costs instructions in every call
	return n, err
}

func (qp *QP) postSend(b *SendBatch) (int, error) {
	wrs, err := qp.sendList(b)
	if len(wrs) == 0 {
		return 0, err
	}
	var p datapath.Posted
	begun := datapath.BeginSend()
	datapath.PostSend(qp.forSending(), qp.sendOps, &wrs[0], &p)
	if begun {
		datapath.EndSend()
	}
	b.finish()
	n := len(wrs)
	if p.Value != 0 {
		n, err = qp.notSent(wrs, &p)
	}
	runtime.KeepAlive(b) // its cleanup would unmap the requests
	return n, err
}

const (
	opPostSend = "ibv_post_send"
	opPostRecv = "ibv_post_recv"
)

// sendList prepares the batch and returns the requests for C. It returns none
// if the batch is empty or there is an error.
func (qp *QP) sendList(b *SendBatch) ([]libibverbs.SendWr, error) {
	if b == nil || b.arena == nil {
		return nil, noBatch(opPostSend, qp.object.Name())
	}
	wrs := b.arena.used()
	if len(wrs) == 0 {
		return nil, nil
	}
	if b.extended != 0 || qp.raw.QpType == QPTypeUD {
		if err := qp.takes(b); err != nil {
			return nil, err
		}
	}
	if err := b.begin(wrs); err != nil {
		return nil, err
	}
	return wrs, nil
}

// forSending returns the C object that requests are posted to.
func (qp *QP) forSending() unsafe.Pointer {
	if qp.sendOps != 0 {
		return unsafe.Pointer(qp.ex)
	}
	return unsafe.Pointer(qp.raw)
}

// takes returns an error if C would misunderstand a request of the batch.
func (qp *QP) takes(b *SendBatch) error {
	refused, unsupported := -1, true
	if qp.sendOps == 0 {
		refused = b.extended - 1
	}
	if qp.raw.QpType == QPTypeUD && refused < 0 {
		refused, unsupported = b.notDatagram(), false
	}
	if refused < 0 {
		return nil
	}
	why := cerr.Invalid("a queue pair of type %s takes only datagrams, such as those of SendTo", QPTypeUD)
	if unsupported {
		why = cerr.InvalidAs(syscall.EOPNOTSUPP, "the queue pair was made without QPConfig.SendOps")
	}
	wr := &b.arena.wrs[refused]
	err := cerr.Argument(opPostSend, fmt.Sprintf("%v on %s", wr.Opcode, qp.object.Name()), why)
	return &PostError{Index: refused, ID: wr.WrId, None: true, Err: err}
}

// notSent returns how many requests were posted before C failed, and the
// failure as a *PostError.
func (qp *QP) notSent(wrs []libibverbs.SendWr, p *datapath.Posted) (int, error) {
	op := opPostSend
	if p.None != 0 {
		op = "ibv_wr_complete"
	}
	e := &PostError{Index: batchmem.Position(wrs, (*libibverbs.SendWr)(p.Bad)), Err: wrap(qp.object.Name(), cerr.Code(op, p.Value, p.Errno))}
	e.ID = wrs[e.Index].WrId
	if !errors.Is(e.Err, syscall.ENOMEM) && (p.Bad != nil || len(wrs) == 1) {
		setHint(e.Err, qp.device.lacksFor(&wrs[e.Index]))
	}
	if e.None = p.None != 0; !e.None {
		return e.Index, e
	}
	if p.Bad == nil && len(wrs) > 1 {
		e.Index, e.ID = -1, 0
	}
	return 0, e
}

// PostRecv posts the batch's receives in one call of C and returns how many it
// posted, which is all of them unless it fails; see ibv_post_recv(3). If a
// receive cannot be posted, the error is a *PostError. The batch can be changed
// or posted again at once. Memory regions must stay open until the receives
// that use them have completed.
func (qp *QP) PostRecv(b *RecvBatch) (int, error) {
	return b.post(qp.self(), func(first *libibverbs.RecvWr) (*libibverbs.RecvWr, error) {
		var p datapath.Posted
		begun := datapath.Begin()
		datapath.PostRecv(qp.raw, first, &p)
		if begun {
			datapath.End()
		}
		return recvPosted(&p)
	})
}

// recvPosted returns the receive that C could not post, and C's error.
func recvPosted(p *datapath.Posted) (bad *libibverbs.RecvWr, err error) {
	return (*libibverbs.RecvWr)(p.Bad), cerr.Code(opPostRecv, p.Value, p.Errno)
}

// post posts the batch to a queue, whose lifetime is to. The function post
// calls C once with the first request of the list, and returns the request that
// C could not post.
func (b *RecvBatch) post(to *object.Object, post func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error)) (int, error) {
	if err := to.Use(); err != nil {
		return 0, err
	}
	defer to.Done()
	if b == nil || b.arena == nil {
		return 0, noBatch(opPostRecv, to.Name())
	}
	if b.Len() == 0 {
		return 0, nil
	}
	defer runtime.KeepAlive(b.arena) // its cleanup would unmap the requests
	if bad, err := post(&b.arena.wrs[0]); err != nil {
		return b.failed(to, bad, err)
	}
	return b.arena.n, nil
}

// failed returns how many receives were posted, and a *PostError for bad.
func (b *RecvBatch) failed(to *object.Object, bad *libibverbs.RecvWr, err error) (int, error) {
	wrs := b.arena.used()
	i := batchmem.Position(wrs, bad)
	return i, &PostError{Index: i, ID: wrs[i].WrId, Err: wrap(to.Name(), err)}
}

// PostError reports a request of a batch that could not be posted. The requests
// before it were posted, unless None is set. That request and the requests
// after it were not posted.
type PostError struct {
	Index int    // index in the batch; -1 means that C does not say which request failed
	ID    uint64 // ID of the request
	None  bool   // whether no request of the batch was posted
	Err   error  // the cause; see Unwrap
}

// Error names the request, what became of the others, and the cause.
func (e *PostError) Error() string {
	s := "the batch"
	if e.Index >= 0 {
		s = fmt.Sprintf("request %d of the batch (ID %d)", e.Index, e.ID)
	}
	switch {
	case e.None:
		s += ", none was posted"
	case e.Index > 0:
		s += ", the ones before it were posted"
	}
	if e.Err == nil {
		return s + " failed"
	}
	s += ": " + e.Err.Error()
	if errors.Is(e.Err, syscall.ENOMEM) {
		s += ": the queue is full until completions have been polled"
	}
	return s
}

// Unwrap returns the cause. It matches syscall.ENOMEM if the queue is full
// (syscall.ENOSPC from Soft-RoCE's ibv_wr_* functions), syscall.EINVAL if the
// request is invalid or the queue pair is in the wrong state, and
// errors.ErrUnsupported if the queue pair was not made for the request.
func (e *PostError) Unwrap() error { return e.Err }

// Exchange posts receives, then posts send requests, and then polls cq until as
// many completions as least says have arrived or the budget expires, all in one
// call of C. The budget is at most MaxSpin, and wcs must have room for least
// completions. Exchange returns how many completions it stored in wcs; if the
// budget expired, wait for the others with CQ.Spin. recv and send may be nil or
// empty.
//
// If a request cannot be posted, Exchange does not poll, and the error is a
// *PostError. If a receive failed (ibv_post_recv), no send request was posted.
// If a send request failed, all receives were posted. If the cause is an
// *ArgumentError, nothing was posted. See PostRecv, PostSend and CQ.Spin.
func (qp *QP) Exchange(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, budget time.Duration) (int, error) {
	return qp.converse(recv, send, cq, wcs, least, datapath.Spinning, budget)
}

// ExchangeAndSleep posts like Exchange, but then blocks in C until completions
// arrive, as CQ.Sleep does, instead of spinning. It may return before the
// budget expires. cq needs a channel. Each completion may raise an event and
// wake the thread, so use cq only for receives, and poll another queue for send
// requests now and then.
func (qp *QP) ExchangeAndSleep(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, budget time.Duration) (int, error) {
	how := datapath.Sleeping
	if cq != nil && cq.solicited {
		how = datapath.SleepingSolicited
	}
	return qp.converse(recv, send, cq, wcs, least, how, budget)
}

func (qp *QP) converse(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, how datapath.How, budget time.Duration) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	if err := cq.self().Use(); err != nil {
		qp.object.Done()
		return 0, err
	}
	_, n, err := qp.exchange(recv, send, cq, wcs, least, how, bounded(budget))
	cq.object.Done() // not deferred: see PostSend
	qp.object.Done()
	return n, err
}

// PostSendAndSpin posts the batch, which must not be empty, like PostSend and
// then polls cq like CQ.Spin, all in one call of C; see ibv_post_send(3) and
// ibv_poll_cq(3). If posting fails, it does not poll. If polling fails, all
// requests have been posted.
func (qp *QP) PostSendAndSpin(b *SendBatch, cq *CQ, wcs []WC, budget time.Duration) (posted, n int, err error) {
	if err := qp.self().Use(); err != nil {
		return 0, 0, err
	}
	if err := cq.self().Use(); err != nil {
		qp.object.Done()
		return 0, 0, err
	}
	if b.Len() > 0 {
		posted, n, err = qp.exchange(nil, b, cq, wcs, 1, datapath.Spinning, bounded(budget))
	} else {
		err = cerr.Refuse(opPostSend, qp.object.Name(), "the batch is empty")
	}
	cq.object.Done() // not deferred: see PostSend
	qp.object.Done()
	return posted, n, err
}

func (qp *QP) postRecvAndPoll(b *RecvBatch, cq *CQ, wcs []WC) (posted, n int, err error) {
	if err := qp.self().Use(); err != nil {
		return 0, 0, err
	}
	if err := cq.self().Use(); err != nil {
		qp.object.Done()
		return 0, 0, err
	}
	_, n, err = qp.exchange(b, nil, cq, wcs, 1, datapath.Spinning, 0)
	if _, failed := err.(*PostError); !failed { // a type assertion, because exchange wraps no PostError
		posted = b.Len()
	}
	cq.object.Done() // not deferred: see PostSend
	qp.object.Done()
	return posted, n, err
}

func (qp *QP) exchange(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, how datapath.How, budget time.Duration) (posted, n int, err error) {
	if least < 1 || least > len(wcs) {
		return 0, 0, cerr.Refuse(cq.queue.Op(), cq.object.Name(), "least is %d, want 1 to %d, the length of wcs", least, len(wcs))
	}
	if how != datapath.Spinning {
		if cq.channel == nil {
			return 0, 0, noChannel("QP.ExchangeAndSleep", cq)
		}
		if err := cq.channel.open(); err != nil {
			return 0, 0, err
		}
	}
	var receives *libibverbs.RecvWr
	if recv.Len() > 0 {
		receives = &recv.arena.wrs[0]
	}
	var wrs []libibverbs.SendWr
	var requests *libibverbs.SendWr
	if send.Len() > 0 {
		if wrs, err = qp.sendList(send); err != nil {
			return 0, 0, err
		}
		requests = &wrs[0]
	}
	var e datapath.Exchanged
	begun := datapath.Begin()
	datapath.Exchange(qp.raw, receives, qp.forSending(), qp.sendOps, requests,
		cq.queue, least, count(wcs), unsafe.Pointer(&wcs[0]), how, budget, &e)
	if begun {
		datapath.End()
	}
	if requests != nil {
		send.finish()
	}
	runtime.KeepAlive(recv) // their cleanups would unmap the requests
	runtime.KeepAlive(send)
	if e.Received.Value != 0 {
		bad, err := recvPosted(&e.Received)
		_, err = recv.failed(qp.self(), bad, err)
		runtime.KeepAlive(recv)
		return 0, 0, err
	}
	if e.Sent.Value != 0 {
		posted, err = qp.notSent(wrs, &e.Sent)
		runtime.KeepAlive(send)
		return posted, 0, err
	}
	n, err = cq.slept(len(wcs), &e.Polled)
	return len(wrs), n, err
}

// group identifies a multicast group.
type group struct {
	gid GID
	lid uint16
}

// groups holds the groups that a queue pair is attached to.
type groups struct {
	sync.Mutex
	joined map[group]struct{}
}

// AttachMulticast lets a queue pair of type QPTypeUD receive datagrams sent to
// a multicast group; see ibv_attach_mcast(3). The subnet must already deliver
// them to the port; package rdmacm joins groups. On RoCE, lid is 0. Attaching
// twice is not an error. Close detaches the queue pair.
func (qp *QP) AttachMulticast(gid GID, lid uint16) error {
	return qp.multicast("ibv_attach_mcast", group{gid, lid}, func(raw *libibverbs.Gid) error {
		if err := libibverbs.AttachMcast(qp.raw, raw, lid); err != nil {
			return err
		}
		if qp.groups.joined == nil {
			qp.groups.joined = map[group]struct{}{}
		}
		qp.groups.joined[group{gid, lid}] = struct{}{}
		return nil
	})
}

// DetachMulticast detaches the queue pair from a multicast group; see
// ibv_detach_mcast(3).
func (qp *QP) DetachMulticast(gid GID, lid uint16) error {
	return qp.multicast("ibv_detach_mcast", group{gid, lid}, func(raw *libibverbs.Gid) error {
		if err := libibverbs.DetachMcast(qp.raw, raw, lid); err != nil {
			return err
		}
		delete(qp.groups.joined, group{gid, lid})
		return nil
	})
}

func (qp *QP) multicast(op string, g group, call func(*libibverbs.Gid) error) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if qp.Type() != QPTypeUD {
		return cerr.Refuse(op, qp.object.Name(), "the queue pair is of type %v, not %v", qp.Type(), QPTypeUD)
	}
	if !g.gid.Addr().IsMulticast() {
		return cerr.Refuse(op, qp.object.Name(), "GID %v is not that of a multicast group", g.gid)
	}
	qp.groups.Lock()
	defer qp.groups.Unlock()
	return wrap(qp.object.Name(), call(rawGID(g.gid)))
}

// leaveAll detaches the queue pair from its groups. C does not destroy a queue
// pair that is attached.
func (qp *QP) leaveAll() error {
	qp.groups.Lock()
	defer qp.groups.Unlock()
	for g := range qp.groups.joined {
		if err := qp.device.unlessRemoved(libibverbs.DetachMcast(qp.raw, rawGID(g.gid), g.lid)); err != nil {
			return wrap(qp.object.Name(), err)
		}
		delete(qp.groups.joined, g)
	}
	return nil
}

func rawGID(gid GID) *libibverbs.Gid {
	var raw libibverbs.Gid
	*raw.Raw() = gid
	return &raw
}

// ECE describes the connection enhancements that a device offers or that both
// ends use. The ends exchange it while they connect. Only devices of the vendor
// understand the options.
type ECE struct {
	VendorID uint32 // 0 means none
	Options  uint32
}

// SetECE sets the enhancements that the queue pair uses; see ibv_set_ece(3).
// Call it before the queue pair is ready to receive. It fails with an error
// matching errors.ErrUnsupported if the device has none, or if VendorID is 0.
func (qp *QP) SetECE(ece ECE) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	raw := libibverbs.Ece{VendorId: ece.VendorID, Options: ece.Options}
	return wrap(qp.object.Name(), libibverbs.SetEce(qp.raw, &raw))
}

// QueryECE returns the enhancements that the device offers for the queue pair,
// or, once it is ready to receive, those in use; see ibv_query_ece(3). It fails
// with an error matching errors.ErrUnsupported if the device has none.
func (qp *QP) QueryECE() (ECE, error) {
	if err := qp.self().Use(); err != nil {
		return ECE{}, err
	}
	defer qp.object.Done()
	var raw libibverbs.Ece
	if err := libibverbs.QueryEce(qp.raw, &raw); err != nil {
		return ECE{}, wrap(qp.object.Name(), err)
	}
	return ECE{VendorID: raw.VendorId, Options: raw.Options}, nil
}
