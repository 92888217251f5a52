package ibverbs

import (
	"errors"
	"fmt"
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
	pd      *PD
	raw     *libibverbs.Qp
	destroy func() error

	// How requests can be posted through the ibv_wr functions: ex is nil if
	// sendOps is 0.
	sendOps libibverbs.QpCreateSendOpsFlags
	ex      *libibverbs.QpEx
}

// QPConfig says how to make a queue pair.
type QPConfig struct {
	Type       QPType // the zero value is QPTypeRC
	SendCQ     *CQ
	RecvCQ     *CQ
	MaxSendWR  int  // send requests under way
	MaxRecvWR  int  // receives posted
	MaxSendSGE int  // segments of a send request; the zero value is 1
	MaxRecvSGE int  // segments of a receive; the zero value is 1
	MaxInline  int  // bytes that may be sent inline
	SignalAll  bool // every send request gives a completion, not only signaled ones

	SendOps libibverbs.QpCreateSendOpsFlags // 0: requests are posted with ibv_post_send alone
}

// InitAttr returns the config as C takes it. It fails if a queue is missing or
// a number cannot be right.
func (c QPConfig) InitAttr() (libibverbs.QpInitAttr, error) {
	var a libibverbs.QpInitAttr
	if c.SendCQ == nil || c.RecvCQ == nil {
		return a, fmt.Errorf("queue pair without a completion queue for each direction: %w", syscall.EINVAL)
	}
	for _, n := range []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline} {
		if n < 0 || n > 1<<31-1 {
			return a, fmt.Errorf("queue pair with a size of %d: %w", n, syscall.EINVAL)
		}
	}
	a.SendCq, a.RecvCq = c.SendCQ.raw, c.RecvCQ.raw
	a.QpType = c.Type
	if a.QpType == 0 {
		a.QpType = QPTypeRC
	}
	a.Cap = libibverbs.QpCap{
		MaxSendWr: uint32(c.MaxSendWR), MaxRecvWr: uint32(c.MaxRecvWR),
		MaxSendSge: uint32(max(c.MaxSendSGE, 1)), MaxRecvSge: uint32(max(c.MaxRecvSGE, 1)),
		MaxInlineData: uint32(c.MaxInline),
	}
	if c.SignalAll {
		a.SqSigAll = 1
	}
	return a, nil
}

// CreateQP makes a queue pair in the reset state; see ibv_create_qp(3).
func (pd *PD) CreateQP(config QPConfig) (*QP, error) {
	return pd.NewQP(config, func(attr *libibverbs.QpInitAttr) (*libibverbs.Qp, func() error, error) {
		raw, err := pd.createQP(attr, config.SendOps)
		return raw, func() error { return libibverbs.DestroyQp(raw) }, err
	})
}

func (pd *PD) createQP(attr *libibverbs.QpInitAttr, ops libibverbs.QpCreateSendOpsFlags) (*libibverbs.Qp, error) {
	if ops == 0 {
		return libibverbs.CreateQp(pd.raw, attr)
	}
	return libibverbs.CreateQpEx(pd.context.raw, &libibverbs.QpInitAttrEx{
		SendCq: attr.SendCq, RecvCq: attr.RecvCq, Cap: attr.Cap, QpType: attr.QpType, SqSigAll: attr.SqSigAll,
		CompMask: uint32(libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS),
		Pd:       pd.raw, SendOpsFlags: uint64(ops),
	})
}

// NewQP makes a queue pair with a function of the caller's, which returns the
// C object and a function that destroys it. It is for packages that make queue
// pairs through another library, as rdmacm does.
func (pd *PD) NewQP(config QPConfig, create func(*libibverbs.QpInitAttr) (*libibverbs.Qp, func() error, error)) (*QP, error) {
	attr, err := config.InitAttr()
	if err != nil {
		return nil, err
	}
	parents := []*object.Object{pd.self(), config.SendCQ.self(), config.RecvCQ.self()}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	for _, cq := range []*CQ{config.SendCQ, config.RecvCQ} {
		// C names a queue by a number, which means another one there.
		if cq.context.raw != pd.context.raw {
			return nil, fmt.Errorf("QP on %s with %s: not the same open device: %w",
				pd.object.Name(), cq.object.Name(), syscall.EINVAL)
		}
	}
	raw, destroy, err := create(&attr)
	if err != nil {
		return nil, cerr.Wrap(pd.object.Name(), err)
	}
	qp := &QP{pd: pd, raw: raw, destroy: destroy, sendOps: config.SendOps}
	if config.SendOps != 0 {
		if qp.ex, err = libibverbs.QpToQpEx(raw); err != nil {
			return nil, errors.Join(cerr.Wrap(pd.object.Name(), err), destroy())
		}
	}
	qp.object.Init(fmt.Sprintf("QP %d of %s", raw.QpNum, pd.context.Name()), parents...)
	register(unsafe.Pointer(raw), qp)
	return qp, nil
}

// Num returns the queue pair's number, by which peers address it.
func (qp *QP) Num() uint32 { return qp.raw.QpNum }

// Type returns the service that the queue pair gives.
func (qp *QP) Type() QPType { return qp.raw.QpType }

// PD returns the protection domain that the queue pair belongs to.
func (qp *QP) PD() *PD { return qp.pd }

// Raw returns the C object, which is valid until Close.
func (qp *QP) Raw() *libibverbs.Qp { return qp.raw }

// Modify changes the attributes that mask names; see ibv_modify_qp(3). It may
// wait for the kernel to resolve an address.
func (qp *QP) Modify(attr *libibverbs.QpAttr, mask libibverbs.QpAttrMask) error {
	if err := qp.self().Use(); err != nil {
		return err
	}
	defer qp.object.Done()
	return cerr.Wrap(qp.object.Name(), libibverbs.ModifyQp(qp.raw, attr, int32(mask)))
}

// SetError moves the queue pair into the error state: everything that is
// posted completes as flushed.
func (qp *QP) SetError() error {
	return qp.Modify(&libibverbs.QpAttr{QpState: QPStateError}, libibverbs.IBV_QP_STATE)
}

// State asks the device for the queue pair's state; see ibv_query_qp(3).
func (qp *QP) State() (QPState, error) {
	if err := qp.self().Use(); err != nil {
		return 0, err
	}
	defer qp.object.Done()
	var attr libibverbs.QpAttr
	var init libibverbs.QpInitAttr
	if err := libibverbs.QueryQp(qp.raw, &attr, int32(libibverbs.IBV_QP_STATE), &init); err != nil {
		return 0, cerr.Wrap(qp.object.Name(), err)
	}
	return attr.QpState, nil
}

// Close destroys the queue pair; see ibv_destroy_qp(3). Requests that are
// still under way never complete.
func (qp *QP) Close() error {
	return qp.self().Close(nil, func() error {
		unregister(unsafe.Pointer(qp.raw))
		if err := qp.destroy(); err != nil {
			register(unsafe.Pointer(qp.raw), qp)
			return cerr.Wrap(qp.object.Name(), err)
		}
		return nil
	})
}
