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
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/object"
)

// QP is a queue pair: a queue of send requests and a queue of receives. Its
// methods may be called concurrently.
type QP struct {
	object  object.Object
	device  *Device
	pd      *PD // nil for a queue pair of an XRC domain that was opened
	raw     *libibverbs.Qp
	num     uint32
	typ     QPType
	destroy func() error
	cap     QPCap

	// How requests can be posted through the ibv_wr functions: ex is nil if
	// sendOps is 0.
	sendOps libibverbs.QpCreateSendOpsFlags
	ex      *libibverbs.QpEx

	// Held while the state is changed or asked for, because C notes the state
	// after either, and an old answer must not hide a new state.
	state sync.Mutex

	groups groups

	failure atomic.Pointer[EventType] // the first fatal event
}

// Failure returns the first event that has said that the queue pair can do nothing
// any more (see EventType.Fatal), and whether there was one. Many devices tell so
// of a queue pair whose peer has asked for what it may not. A queue pair that is
// reset and used again keeps it.
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

// CreateQP makes a queue pair in the reset state; see ibv_create_qp(3) and
// ibv_create_qp_ex(3). It fails with errors.ErrUnsupported if the device does
// not have what the config asks for.
func (pd *PD) CreateQP(config QPConfig) (*QP, error) {
	return pd.newQP(config, func(attr *libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error) {
		raw, err := pd.createQP(attr)
		return raw, func() error { return libibverbs.DestroyQp(raw) }, err
	})
}

const opCreateQP = "ibv_create_qp"

func (pd *PD) createQP(attr *libibverbs.QpInitAttrEx) (*libibverbs.Qp, error) {
	if attr.CompMask != uint32(libibverbs.IBV_QP_INIT_ATTR_PD) {
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

// newQP makes a queue pair with a function that returns the C object, and one that
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
	raw, destroy, err := create(&attr)
	if err != nil {
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
	qp.init(parents...)
	return qp, nil
}

// init is called with the parents in use.
func (qp *QP) init(parents ...*object.Object) {
	qp.num, qp.typ = qp.raw.QpNum, qp.raw.QpType
	qp.object.Init(fmt.Sprintf("QP %d of %s", qp.num, qp.device.Name()), parents...)
	register(unsafe.Pointer(qp.raw), qp)
}

// Num returns the queue pair's number, by which peers address it.
func (qp *QP) Num() uint32 { return qp.num }

// Type returns the service that the queue pair gives.
func (qp *QP) Type() QPType { return qp.typ }

// Cap returns how much the queue pair can hold, which is at least what its
// config asked for.
func (qp *QP) Cap() QPCap { return qp.cap }

// SendOps returns which requests can be posted through the ibv_wr functions.
func (qp *QP) SendOps() SendOpsFlags { return qp.sendOps }

// PD returns the protection domain that the queue pair was made with, nil if
// it was opened.
func (qp *QP) PD() *PD { return qp.pd }

// Raw returns the C object, which is valid until Close.
func (qp *QP) Raw() *libibverbs.Qp { return qp.raw }

// Close takes the queue pair out of its multicast groups and destroys it; see
// ibv_destroy_qp(3). Requests that are still under way never complete. If C
// refuses to destroy it, it stays usable, outside of the groups.
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

// TransitionError is a change of a queue pair's attributes that C would refuse:
// there is no way between the states, or the attributes are not those that the
// way needs. It is syscall.EINVAL. Nothing was changed.
type TransitionError struct {
	QP         string // the queue pair's name
	Type       QPType
	From, To   QPState
	Missing    QPAttrMask
	NotAllowed QPAttrMask
}

// Error says which change of which queue pair it is, and names the attributes
// that are missing or too many as C's struct ibv_qp_attr does.
func (e *TransitionError) Error() string {
	s := fmt.Sprintf("ibv_modify_qp (%s): %s %s -> %s: ", e.QP,
		strings.TrimPrefix(e.Type.String(), "IBV_QPT_"), stateName(e.From), stateName(e.To))
	if e.Missing == 0 && e.NotAllowed == 0 {
		return s + "no such transition, from " + stateName(e.From) + " it goes to " + strings.Join(next(e.From), ", ")
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

// Unwrap makes errors.Is work with EINVAL.
func (e *TransitionError) Unwrap() error { return syscall.EINVAL }

// checkTransition returns nil if the attributes of mask may be changed from
// one state to the other.
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

// next returns the states that follow.
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

// names returns C's names for the attributes.
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

// Modify changes the attributes that mask names; see ibv_modify_qp(3). It returns a
// *TransitionError if the queue pair's state allows no such change, or if it needs
// other attributes. A number that the mask names and that cannot be right is refused
// with syscall.EINVAL. A new path on RoCE may take seconds, while the kernel looks for
// the peer's hardware address; the call then holds a thread.
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

// modify is Modify with the attributes as C has them.
func (qp *QP) modify(attr *libibverbs.QpAttr, mask QPAttrMask) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	// What C noted may be out of date, because errors change the state too. So
	// it may let a call pass, but only the device's answer refuses one.
	if qp.refusal(qp.noted(), attr, mask) != nil {
		if err := qp.refusalNow(attr, mask); err != nil {
			return err
		}
	}
	err := libibverbs.ModifyQp(qp.raw, attr, int32(mask))
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

// noted returns the state that C noted after its last call, for whichever
// library.
func (qp *QP) noted() QPState {
	return QPState(atomic.LoadUint32((*uint32)(unsafe.Pointer(&qp.raw.State))))
}

// refusal returns what is wrong with a change in a state. The tables are those
// of InfiniBand and RoCE; other transports have states of their own.
func (qp *QP) refusal(from QPState, attr *libibverbs.QpAttr, mask QPAttrMask) *TransitionError {
	if qp.device.raw.Device.TransportType != libibverbs.IBV_TRANSPORT_IB {
		return nil
	}
	if mask&QPAttrCurState != 0 {
		from = attr.CurQpState // which the device then takes for true
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

// refusalNow is refusal in the state that the device says. If it does not say,
// it may decide about the change itself.
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

// askState asks the device for the state. The lock must be held.
func (qp *QP) askState() (QPState, error) {
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	if err := libibverbs.QueryQp(qp.raw, &attr, int32(libibverbs.IBV_QP_STATE), &init); err != nil {
		return 0, wrap(qp.object.Name(), err)
	}
	return attr.QpState, nil
}

// queried are the attributes that can be asked for: all but the rate limit.
const queried = libibverbs.IBV_QP_DEST_QPN<<1 - 1

// Query asks the device for the queue pair's attributes; see ibv_query_qp(3).
// Those that its type or state does not have are meaningless. It waits for a
// Modify that is under way.
func (qp *QP) Query() (QPAttr, error) {
	if err := qp.self().Use(); err != nil {
		return QPAttr{}, err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	if err := libibverbs.QueryQp(qp.raw, &attr, int32(queried), &init); err != nil {
		return QPAttr{}, wrap(qp.object.Name(), err)
	}
	return qpAttrOf(&attr), nil
}

// State asks the device for the queue pair's state; see ibv_query_qp(3). It
// waits for a Modify that is under way.
func (qp *QP) State() (QPState, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	qp.state.Lock()
	defer qp.state.Unlock()
	return qp.askState()
}

// RateLimit is how fast a queue pair may send.
type RateLimit struct {
	KilobitsPerSecond uint32 // 0: no limit
	MaxBurst          int    // bytes sent at once; 0: the device chooses
	TypicalPacket     int    // bytes, which help the device; 0: not known
}

// SetRateLimit changes how fast the queue pair may send, which must be ready to
// send or on the way to it; see ibv_modify_qp_rate_limit(3). Few devices can do
// it; with the others it fails with errors.ErrUnsupported.
func (qp *QP) SetRateLimit(limit RateLimit) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	if limit.MaxBurst < 0 || int64(limit.MaxBurst) > math.MaxUint32 ||
		limit.TypicalPacket < 0 || limit.TypicalPacket > math.MaxUint16 {
		return cerr.Refuse("ibv_modify_qp_rate_limit", qp.object.Name(), "MaxBurst is %d and TypicalPacket %d, not up to %d and %d",
			limit.MaxBurst, limit.TypicalPacket, uint32(math.MaxUint32), math.MaxUint16)
	}
	attr := libibverbs.QpRateLimitAttr{
		RateLimit: limit.KilobitsPerSecond, MaxBurstSz: uint32(limit.MaxBurst), TypicalPktSz: uint16(limit.TypicalPacket),
	}
	return wrap(qp.object.Name(), libibverbs.ModifyQpRateLimit(qp.raw, &attr))
}

// DataInOrder says in which order received data appears in memory.
type DataInOrder = libibverbs.QueryQpDataInOrderCaps

// The orders of received data. Without either, only a completion says that
// data is there.
const (
	DataInOrderMessage DataInOrder = libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG         // byte after byte of the message
	DataInOrder128     DataInOrder = libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES // within aligned blocks of 128 bytes
)

// DataInOrder returns in which order the data of the peer's requests of a kind
// appears in memory, so that a program may poll the memory instead of the
// completion queue; see ibv_query_qp_data_in_order(3). 0 also stands for a
// device that does not know. It needs rdma-core 36 or later.
func (qp *QP) DataInOrder(op libibverbs.WrOpcode) (DataInOrder, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	caps, err := libibverbs.QueryQpDataInOrder(qp.raw, op, uint32(libibverbs.IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS))
	return DataInOrder(caps), wrap(qp.object.Name(), err)
}

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

// PostSend posts the batch's requests in one call of C and returns how many
// were posted, which is all of them unless there is an error: a *PostError. The
// batch can be used or changed again at once. The memory regions must stay open
// until their requests have completed, or with SendInline until they are
// posted.
//
// A queue pair that was made with QPConfig.SendOps posts all requests or none;
// see ibv_wr_post(3). Any other posts those before the one that fails; see
// ibv_post_send(3).
func (qp *QP) PostSend(b *SendBatch) (int, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	n, err := qp.postSend(b)
	qp.object.Done() // not deferred, because that takes instructions in every call
	return n, err
}

func (qp *QP) postSend(b *SendBatch) (int, error) {
	wrs, err := qp.sendList(b)
	if len(wrs) == 0 {
		return 0, err
	}
	var p datapath.Posted
	datapath.PostSend(qp.forSending(), qp.sendOps, &wrs[0], &p)
	b.finish()
	n := len(wrs)
	if p.Value != 0 {
		n, err = qp.notSent(wrs, &p)
	}
	runtime.KeepAlive(b) // whose cleanup would unmap the requests
	return n, err
}

const (
	opPostSend = "ibv_post_send"
	opPostRecv = "ibv_post_recv"
)

// sendList returns what C posts, with the batch ready for it: nothing if there
// is an error or nothing to post.
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

// forSending is what C gets for the queue pair.
func (qp *QP) forSending() unsafe.Pointer {
	if qp.sendOps != 0 {
		return unsafe.Pointer(qp.ex)
	}
	return unsafe.Pointer(qp.raw)
}

// takes refuses what C would misunderstand.
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

// notSent makes an error of what C failed with, and says how many were posted.
func (qp *QP) notSent(wrs []libibverbs.SendWr, p *datapath.Posted) (int, error) {
	op := opPostSend
	if p.None != 0 {
		op = "ibv_wr_complete"
	}
	e := &PostError{Index: position(wrs, (*libibverbs.SendWr)(p.Bad)), Err: wrap(qp.object.Name(), cerr.Code(op, p.Value, p.Errno))}
	e.ID = wrs[e.Index].WrId
	if e.None = p.None != 0; !e.None {
		return e.Index, e
	}
	if p.Bad == nil && len(wrs) > 1 {
		e.Index, e.ID = -1, 0
	}
	return 0, e
}

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error: a *PostError; see
// ibv_post_recv(3). The batch can be used or changed again at once. The memory
// regions must stay open until their receives have completed.
func (qp *QP) PostRecv(b *RecvBatch) (int, error) {
	return b.post(qp.self(), func(first *libibverbs.RecvWr) (*libibverbs.RecvWr, error) {
		var p datapath.Posted
		datapath.PostRecv(qp.raw, first, &p)
		return recvPosted(&p)
	})
}

// recvPosted makes an error of what C said, and says which receive it is.
func recvPosted(p *datapath.Posted) (bad *libibverbs.RecvWr, err error) {
	return (*libibverbs.RecvWr)(p.Bad), cerr.Code(opPostRecv, p.Value, p.Errno)
}

// post posts the batch to an object with a function that calls C once, with
// the first request of the list, and returns the one that C could not post.
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
	defer runtime.KeepAlive(b.arena) // whose cleanup would unmap the requests
	if bad, err := post(&b.arena.wrs[0]); err != nil {
		return b.failed(to, bad, err)
	}
	return b.arena.n, nil
}

// failed says which receive could not be posted.
func (b *RecvBatch) failed(to *object.Object, bad *libibverbs.RecvWr, err error) (int, error) {
	wrs := b.arena.used()
	i := position(wrs, bad)
	return i, &PostError{Index: i, ID: wrs[i].WrId, Err: wrap(to.Name(), err)}
}

// position returns the index of the request that C could not post, 0 if C did
// not say.
func position[T any](wrs []T, bad *T) int {
	offset := uintptr(unsafe.Pointer(bad)) - uintptr(unsafe.Pointer(&wrs[0]))
	if i := offset / unsafe.Sizeof(wrs[0]); bad != nil && i < uintptr(len(wrs)) {
		return int(i)
	}
	return 0
}

// PostError says which request of a batch could not be posted. Those before it
// were posted, unless None is set; it and those after it were not.
type PostError struct {
	Index int    // of the request in the batch; -1 if C does not say which it is
	ID    uint64 // of the request
	None  bool   // nothing was posted, as with ibv_wr_*
	Err   error
}

// Error says which request it was, what became of the others, and what C said.
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
	s += ": " + e.Err.Error()
	if errors.Is(e.Err, syscall.ENOMEM) {
		s += ": the queue is full until completions have been polled"
	}
	return s
}

// Unwrap returns the C library's error: ENOMEM for a full queue (Soft-RoCE's
// ibv_wr_* give ENOSPC), EINVAL for a request that cannot be right or a queue
// pair in the wrong state, and one that is errors.ErrUnsupported for a request
// that the queue pair was not made for.
func (e *PostError) Unwrap() error { return e.Err }

// Exchange posts receives, then requests, and then polls a completion queue
// until at least so many completions are there or the budget is used up, of
// which at most MaxSpin counts: a turn of a conversation in one call of C. It
// returns how many completions it has put into wcs, which has room for at least
// least; fewer than that when time was up, to be waited for with CQ.Spin. recv
// and send may be nil or empty.
//
// A *PostError says which request could not be posted: if it is a receive
// (ibv_post_recv), no request was posted either; if it is a request, all
// receives were. It does not poll then. Anything else is an error of polling.
// See PostRecv, PostSend and CQ.Spin.
func (qp *QP) Exchange(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, budget time.Duration) (int, error) {
	return qp.converse(recv, send, cq, wcs, least, datapath.Spinning, budget)
}

// ExchangeAndSleep is Exchange that sleeps as CQ.Sleep does instead of spinning:
// it may end before the budget does. The queue needs a channel. Each completion
// may give an event and wake the thread, so that a queue for receives alone, and
// another one for requests, to be polled now and then, suits it best.
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

// PostSendAndSpin is PostSend, and then Spin on a completion queue, in one call
// of C. If posting fails, it does not poll; see ibv_post_send(3) and
// ibv_poll_cq(3).
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

func (qp *QP) exchange(recv *RecvBatch, send *SendBatch, cq *CQ, wcs []WC, least int, how datapath.How, budget time.Duration) (posted, n int, err error) {
	if least < 1 || least > len(wcs) {
		return 0, 0, cerr.Refuse(cq.queue.Op(), cq.object.Name(), "least is %d, not from 1 to the length of wcs, %d", least, len(wcs))
	}
	if how != datapath.Spinning && cq.channel == nil {
		return 0, 0, noChannel("QP.ExchangeAndSleep", cq)
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
	datapath.Exchange(qp.raw, receives, qp.forSending(), qp.sendOps, requests,
		cq.queue, least, count(wcs), unsafe.Pointer(&wcs[0]), how, budget, &e)
	if requests != nil {
		send.finish()
	}
	runtime.KeepAlive(recv) // whose cleanups would unmap the requests
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

// group is a multicast group as C knows it.
type group struct {
	gid GID
	lid uint16
}

// groups are those that a queue pair is in.
type groups struct {
	sync.Mutex
	joined map[group]struct{}
}

// AttachMulticast makes a queue pair for datagrams receive what is sent to a
// multicast group; see ibv_attach_mcast(3). The subnet must already deliver it:
// rdmacm joins groups. On RoCE lid is 0. Attaching twice is no error. Close
// detaches the queue pair.
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

// DetachMulticast ends what AttachMulticast began; see ibv_detach_mcast(3).
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

// leaveAll detaches the queue pair from its groups: C does not destroy it
// before.
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

// ECE says which enhancements of a connection a device offers or has agreed
// on. Two ends exchange it while they connect. The options mean something to
// devices of the vendor alone.
type ECE struct {
	VendorID uint32 // 0: none
	Options  uint32
}

// SetECE tells the queue pair which enhancements to use, before it is ready to
// receive; see ibv_set_ece(3). It fails with errors.ErrUnsupported if the device
// has none, and for a VendorID of 0.
func (qp *QP) SetECE(ece ECE) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	raw := libibverbs.Ece{VendorId: ece.VendorID, Options: ece.Options}
	return wrap(qp.object.Name(), libibverbs.SetEce(qp.raw, &raw))
}

// QueryECE returns the enhancements that the device offers for the queue pair,
// or those that are in use once it is ready to receive; see ibv_query_ece(3).
// It fails with errors.ErrUnsupported if the device has none.
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
