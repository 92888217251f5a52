package ibverbs

import (
	"errors"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

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
