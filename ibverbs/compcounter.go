package ibverbs

import (
	"fmt"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// CompCounter counts the completions of queue pairs, instead of or in addition
// to completion queue entries. It has one number for those that succeeded and
// one for those that failed. Its methods may be called concurrently. It needs
// rdma-core 65, without which all of its calls fail with errors.ErrUnsupported.
//
// A read may return a number set or added only a little later. Set numbers only
// while no requests are outstanding: simultaneous changes may be lost.
type CompCounter struct {
	object object.Object
	device *Device
	raw    *libibverbs.CompCntr
}

// CompCounterUnit selects what a completion counter adds up.
type CompCounterUnit = libibverbs.CompCntrType

// The units of completion counters.
const (
	CountRequests CompCounterUnit = libibverbs.IBV_COMP_CNTR_TYPE_WRS
	CountBytes    CompCounterUnit = libibverbs.IBV_COMP_CNTR_TYPE_BYTES
)

// CompCounterOps selects the operations to count; combine them with |.
type CompCounterOps = libibverbs.QpAttachCompCntrOp

// The operations that can be counted. The last two are those of the peer on
// local memory.
const (
	CountSends        CompCounterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_SEND
	CountRecvs        CompCounterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RECV
	CountReads        CompCounterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ
	CountWrites       CompCounterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE
	CountRemoteReads  CompCounterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ
	CountRemoteWrites CompCounterOps = libibverbs.IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE
)

// CompCounterCaps describes what a device's completion counters can do.
type CompCounterCaps struct {
	MaxValue    uint64 // counters wrap to 0 above it
	MaxCounters int
	Ops         CompCounterOps
}

// QueryCompCounterCaps returns what the device's completion counters can do;
// see ibv_query_comp_cntr_caps(3).
func (d *Device) QueryCompCounterCaps() (CompCounterCaps, error) {
	if err := d.self().Use(); err != nil {
		return CompCounterCaps{}, err
	}
	defer d.object.Done()
	var caps libibverbs.CompCntrCaps
	if err := libibverbs.QueryCompCntrCaps(d.raw, &caps); err != nil {
		return CompCounterCaps{}, wrap(d.Name(), err)
	}
	return CompCounterCaps{
		MaxValue: caps.MaxValue, MaxCounters: int(caps.MaxCounters), Ops: CompCounterOps(caps.SupportedQpAttachOps),
	}, nil
}

// CreateCompCounter creates a completion counter; see ibv_create_comp_cntr(3).
func (d *Device) CreateCompCounter(unit CompCounterUnit) (*CompCounter, error) {
	if err := d.self().Use(); err != nil {
		return nil, err
	}
	defer d.object.Done()
	raw, err := libibverbs.CreateCompCntr(d.raw, &libibverbs.CompCntrInitAttr{Type: unit})
	if err != nil {
		return nil, wrap(d.Name(), err)
	}
	cc := &CompCounter{device: d, raw: raw}
	cc.object.Init(fmt.Sprintf("completion counter %d of %s", raw.Handle, d.Name()), &d.object)
	return cc, nil
}

func (cc *CompCounter) self() *object.Object {
	if cc == nil {
		return nil
	}
	return &cc.object
}

// AttachCompCounter makes the counter count completions of the queue pair,
// which must be in the reset or init state; see ibv_qp_attach_comp_cntr(3). The
// queue pair must then be closed before the counter. Only one counter can count
// each operation: a second one fails with EBUSY.
func (qp *QP) AttachCompCounter(cc *CompCounter, ops CompCounterOps) error {
	done, err := object.UseAll(qp.self(), cc.self())
	if err != nil {
		return err
	}
	defer done()
	if err := sameDevice("ibv_qp_attach_comp_cntr", qp.object.Name(), qp.raw.Context, &cc.object, cc.device.raw); err != nil {
		return err
	}
	if ops == 0 {
		return cerr.Refuse("ibv_qp_attach_comp_cntr", qp.object.Name(), "ops has no operation to count")
	}
	attr := &libibverbs.QpAttachCompCntrAttr{OpMask: uint32(ops)}
	if err := libibverbs.QpAttachCompCntr(qp.raw, cc.raw, attr); err != nil {
		return wrap(fmt.Sprintf("%s to %s", cc.object.Name(), qp.object.Name()), err)
	}
	qp.object.AddParent(&cc.object)
	return nil
}

// Read returns the number of completions that succeeded; see
// ibv_create_comp_cntr(3).
func (cc *CompCounter) Read() (uint64, error) { return cc.read(libibverbs.ReadCompCntr) }

// ReadErrors returns the number of completions that failed; see
// ibv_create_comp_cntr(3).
func (cc *CompCounter) ReadErrors() (uint64, error) { return cc.read(libibverbs.ReadErrCompCntr) }

// Set sets the number of completions that succeeded; see
// ibv_create_comp_cntr(3).
func (cc *CompCounter) Set(value uint64) error { return cc.write(libibverbs.SetCompCntr, value) }

// SetErrors sets the number of completions that failed; see
// ibv_create_comp_cntr(3).
func (cc *CompCounter) SetErrors(value uint64) error {
	return cc.write(libibverbs.SetErrCompCntr, value)
}

// Add adds amount to the number of completions that succeeded; see
// ibv_create_comp_cntr(3).
func (cc *CompCounter) Add(amount uint64) error { return cc.write(libibverbs.IncCompCntr, amount) }

// AddErrors adds amount to the number of completions that failed; see
// ibv_create_comp_cntr(3).
func (cc *CompCounter) AddErrors(amount uint64) error {
	return cc.write(libibverbs.IncErrCompCntr, amount)
}

func (cc *CompCounter) read(call func(*libibverbs.CompCntr) (uint64, error)) (uint64, error) {
	if err := cc.self().Use(); err != nil {
		return 0, err
	}
	defer cc.object.Done()
	value, err := call(cc.raw)
	return value, wrap(cc.object.Name(), err)
}

func (cc *CompCounter) write(call func(*libibverbs.CompCntr, uint64) error, value uint64) error {
	if err := cc.self().Use(); err != nil {
		return err
	}
	defer cc.object.Done()
	return wrap(cc.object.Name(), call(cc.raw, value))
}

// Raw returns the C object, which is valid until Close.
func (cc *CompCounter) Raw() *libibverbs.CompCntr { return cc.raw }

// Close destroys the counter; see ibv_create_comp_cntr(3). While queue pairs
// use it, Close does nothing and returns a *BusyError.
func (cc *CompCounter) Close() error {
	return cc.self().Close(nil, func() error {
		return wrap(cc.object.Name(), cc.device.unlessRemoved(libibverbs.DestroyCompCntr(cc.raw)))
	})
}
