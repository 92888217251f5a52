package ibverbs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
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
