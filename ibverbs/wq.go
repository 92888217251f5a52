package ibverbs

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// WQ is a receive work queue, which exists without a queue pair of its own. A
// queue pair made by CreateRSSQP of package flow spreads what it receives over
// several WQs. The methods of WQ may be called concurrently.
type WQ struct {
	object  object.Object
	pd      *PD
	cq      *CQ
	raw     *libibverbs.Wq
	num     uint32
	modify  sync.Mutex // held while C reads or writes the state
	maxWR   int
	maxSGEs int
}

// WQFlags are options of a work queue; combine them with |.
type WQFlags = libibverbs.WqFlags

// The options of a work queue.
const (
	WQCVLANStripping     WQFlags = libibverbs.IBV_WQ_FLAGS_CVLAN_STRIPPING       // remove the VLAN tag of received packets
	WQScatterFCS         WQFlags = libibverbs.IBV_WQ_FLAGS_SCATTER_FCS           // keep the frame check sequence of received packets
	WQDelayDrop          WQFlags = libibverbs.IBV_WQ_FLAGS_DELAY_DROP            // if no receive is posted, wait a while before dropping packets
	WQPCIWriteEndPadding WQFlags = libibverbs.IBV_WQ_FLAGS_PCI_WRITE_END_PADDING // pad writes to memory to full cache lines
)

// WQState is the state of a work queue.
type WQState = libibverbs.WqState

// The states of a work queue.
const (
	WQStateReset WQState = libibverbs.IBV_WQS_RESET
	WQStateReady WQState = libibverbs.IBV_WQS_RDY
	WQStateError WQState = libibverbs.IBV_WQS_ERR
)

// WQConfig says how to make a work queue.
type WQConfig struct {
	CQ     *CQ // for completions of receives
	MaxWR  int // posted receives, at least
	MaxSGE int // segments of a receive, at least; the zero value is 1
	Flags  WQFlags
}

// initAttr returns the config in C's form.
func (c WQConfig) initAttr(pd *PD) (*libibverbs.WqInitAttr, error) {
	err := firstError(inRange("MaxWR", c.MaxWR, 1, math.MaxInt32), inRange("MaxSGE", c.MaxSGE, 0, math.MaxInt32))
	if err != nil {
		return nil, cerr.Argument("ibv_create_wq", pd.object.Name(), err)
	}
	attr := &libibverbs.WqInitAttr{
		WqType: libibverbs.IBV_WQT_RQ, MaxWr: uint32(c.MaxWR), MaxSge: uint32(max(c.MaxSGE, 1)), Pd: pd.raw, Cq: c.CQ.raw,
	}
	if c.Flags != 0 {
		attr.CompMask = uint32(libibverbs.IBV_WQ_INIT_ATTR_FLAGS)
		attr.CreateFlags = uint32(c.Flags)
	}
	return attr, nil
}

// CreateWQ makes a receive work queue in the reset state; see ibv_create_wq(3).
// It fails with errors.ErrUnsupported on most devices.
func (pd *PD) CreateWQ(config WQConfig) (*WQ, error) {
	parents := []*object.Object{pd.self(), config.CQ.self()}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := sameDevice("ibv_create_wq", pd.object.Name(), pd.device.raw, config.CQ.self(), config.CQ.device.raw); err != nil {
		return nil, err
	}
	attr, err := config.initAttr(pd)
	if err != nil {
		return nil, err
	}
	raw, err := libibverbs.CreateWq(pd.device.raw, attr)
	if err != nil {
		return nil, wrap(pd.object.Name(), err)
	}
	wq := &WQ{pd: pd, cq: config.CQ, raw: raw, num: raw.WqNum, maxWR: int(attr.MaxWr), maxSGEs: int(attr.MaxSge)}
	wq.object.Init(fmt.Sprintf("WQ %d of %s", raw.WqNum, pd.device.Name()), parents...)
	register(unsafe.Pointer(raw), wq)
	return wq, nil
}

func (wq *WQ) self() *object.Object {
	if wq == nil {
		return nil
	}
	return &wq.object
}

// Num returns the number of the queue.
func (wq *WQ) Num() uint32 { return wq.num }

// MaxWR returns how many receives can be posted at the same time.
func (wq *WQ) MaxWR() int { return wq.maxWR }

// MaxSGE returns how many segments a receive can have.
func (wq *WQ) MaxSGE() int { return wq.maxSGEs }

// CQ returns the completion queue of the receives.
func (wq *WQ) CQ() *CQ { return wq.cq }

// PD returns the protection domain of the queue.
func (wq *WQ) PD() *PD { return wq.pd }

// Raw returns the C object, which is valid until Close.
func (wq *WQ) Raw() *libibverbs.Wq { return wq.raw }

// State returns the last state that SetState set. If the device itself moves
// the queue to the error state, only an asynchronous event reports it.
func (wq *WQ) State() (WQState, error) {
	if err := wq.self().Use(); err != nil {
		return 0, err
	}
	defer wq.object.Done()
	wq.modify.Lock()
	defer wq.modify.Unlock()
	return wq.raw.State, nil
}

// SetState moves the queue to a state; see ibv_modify_wq(3). A queue in the
// reset state can become ready, and receives can then be posted. From any
// state, a queue can be reset, or moved to the error state, in which all posted
// receives complete as flushed.
func (wq *WQ) SetState(state WQState) error {
	return wq.change(&libibverbs.WqAttr{AttrMask: uint32(libibverbs.IBV_WQ_ATTR_STATE), WqState: state})
}

// SetFlags turns the options in mask on or off, as in flags; see
// ibv_modify_wq(3). A device may be able to change only some of them, or none.
func (wq *WQ) SetFlags(flags, mask WQFlags) error {
	return wq.change(&libibverbs.WqAttr{
		AttrMask: uint32(libibverbs.IBV_WQ_ATTR_FLAGS), Flags: uint32(flags), FlagsMask: uint32(mask),
	})
}

// change changes the attributes in attr's mask.
func (wq *WQ) change(attr *libibverbs.WqAttr) error {
	if err := wq.self().Use(); err != nil {
		return err
	}
	defer wq.object.Done()
	wq.modify.Lock()
	defer wq.modify.Unlock()
	return wrap(wq.object.Name(), libibverbs.ModifyWq(wq.raw, attr))
}

// Close destroys the queue; see ibv_destroy_wq(3). While an indirection table
// contains the queue, Close does nothing and returns a *BusyError.
func (wq *WQ) Close() error {
	return wq.self().Close(nil, func() error {
		unregister(unsafe.Pointer(wq.raw))
		if err := wq.pd.device.unlessRemoved(libibverbs.DestroyWq(wq.raw)); err != nil {
			register(unsafe.Pointer(wq.raw), wq)
			return wrap(wq.object.Name(), err)
		}
		wq.pd.device.forgetEvents(wq, EventClassWQ, wq.num)
		return nil
	})
}

// PostRecv posts the batch's receives in one call of C and returns how many it
// posted, which is all of them unless it fails. If a receive cannot be posted,
// the error is a *PostError. The batch can be changed or posted again at once.
// Memory regions must stay open until the receives that use them have
// completed.
func (wq *WQ) PostRecv(b *RecvBatch) (int, error) {
	return b.post(wq.self(), func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error) {
		err = libibverbs.PostWqRecv(wq.raw, first, &bad)
		return bad, err
	})
}
