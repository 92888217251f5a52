// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math"
	"sync"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// WQ is a receive work queue that does not belong to one queue pair. A queue
// pair made by [CreateRSSQP] spreads the packets that it receives over several
// WQs. The methods of WQ may be called concurrently.
//
// A WQ is the Object of its events, which [ibverbs.Device.NextEvent] returns.
type WQ struct {
	object  object.Object
	pd      *ibverbs.PD
	cq      *ibverbs.CQ
	raw     *libibverbs.Wq
	num     uint32
	modify  sync.Mutex // held while C reads or writes the state
	maxWR   int
	maxSGEs int
	post    postRecv // made once, so that posting allocates nothing
}

// postRecv posts receives with C, and returns the first receive that was not
// posted.
type postRecv = func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error)

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

// WQConfig is the configuration of a work queue.
type WQConfig struct {
	CQ           *ibverbs.CQ // completion queue for receives; required
	RecvQueue    int         // minimum number of receives that can be posted
	RecvSegments int         // minimum number of segments that a receive can have; 0 means 1
	Flags        WQFlags
}

// initAttr returns the config in C's form.
func (c WQConfig) initAttr(pd *ibverbs.PD) (*libibverbs.WqInitAttr, error) {
	name := sibling.ObjectOf(pd).Name()
	switch {
	case c.RecvQueue < 1 || c.RecvQueue > math.MaxInt32:
		return nil, cerr.Refuse(opCreateWQ, name, "RecvQueue is %d, not from 1 to %d", c.RecvQueue, math.MaxInt32)
	case c.RecvSegments < 0 || c.RecvSegments > math.MaxInt32:
		return nil, cerr.Refuse(opCreateWQ, name, "RecvSegments is %d, not from 0 to %d", c.RecvSegments, math.MaxInt32)
	}
	attr := &libibverbs.WqInitAttr{
		WqType: libibverbs.IBV_WQT_RQ, MaxWr: uint32(c.RecvQueue), MaxSge: uint32(max(c.RecvSegments, 1)), Pd: pd.Raw(), Cq: c.CQ.Raw(),
	}
	if c.Flags != 0 {
		attr.CompMask = libibverbs.IBV_WQ_INIT_ATTR_FLAGS
		attr.CreateFlags = c.Flags
	}
	return attr, nil
}

const opCreateWQ = "ibv_create_wq"

// CreateWQ creates a receive work queue in the reset state; see
// ibv_create_wq(3). Few devices support work queues; on others, the error
// matches errors.ErrUnsupported.
func CreateWQ(pd *ibverbs.PD, config WQConfig) (*WQ, error) {
	parents := []*object.Object{sibling.ObjectOf(pd), sibling.ObjectOf(config.CQ)}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := sibling.SameDevice(opCreateWQ, parents[0].Name(), pd.Device(), parents[1], config.CQ.Device()); err != nil {
		return nil, err
	}
	attr, err := config.initAttr(pd)
	if err != nil {
		return nil, err
	}
	raw, err := libibverbs.CreateWq(pd.Device().Raw(), attr)
	if err != nil {
		return nil, sibling.Wrap(parents[0].Name(), err)
	}
	wq := &WQ{pd: pd, cq: config.CQ, raw: raw, num: raw.WqNum, maxWR: int(attr.MaxWr), maxSGEs: int(attr.MaxSge)}
	wq.post = func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error) {
		err = libibverbs.PostWqRecv(raw, first, &bad)
		return bad, err
	}
	wq.object.Init(fmt.Sprintf("WQ %d of %s", raw.WqNum, pd.Device().Name()), parents...)
	sealed.Open(pd.Device().Internals()).RegisterWQ(wq)
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

// RecvQueue returns how many receives can be posted at the same time.
func (wq *WQ) RecvQueue() int { return wq.maxWR }

// RecvSegments returns how many segments a receive can have.
func (wq *WQ) RecvSegments() int { return wq.maxSGEs }

// CQ returns the completion queue of the receives.
func (wq *WQ) CQ() *ibverbs.CQ { return wq.cq }

// PD returns the protection domain of the queue.
func (wq *WQ) PD() *ibverbs.PD { return wq.pd }

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
// reset state can be moved to the ready state, in which receives can be posted.
// From any state, a queue can be moved to the reset state, or to the error
// state, in which all posted receives complete as flushed.
func (wq *WQ) SetState(state WQState) error {
	return wq.change(&libibverbs.WqAttr{AttrMask: libibverbs.IBV_WQ_ATTR_STATE, WqState: state})
}

// SetFlags sets the options in mask to their values in flags; see
// ibv_modify_wq(3). A device may be able to change only some of them, or none.
func (wq *WQ) SetFlags(flags, mask WQFlags) error {
	return wq.change(&libibverbs.WqAttr{
		AttrMask: libibverbs.IBV_WQ_ATTR_FLAGS, Flags: flags, FlagsMask: mask,
	})
}

// change changes the attributes that attr.AttrMask selects.
func (wq *WQ) change(attr *libibverbs.WqAttr) error {
	if err := wq.self().Use(); err != nil {
		return err
	}
	defer wq.object.Done()
	wq.modify.Lock()
	defer wq.modify.Unlock()
	return sibling.Wrap(wq.object.Name(), libibverbs.ModifyWq(wq.raw, attr))
}

// Close destroys the queue; see ibv_destroy_wq(3). While an indirection table
// contains the queue, Close does nothing and returns an *[ibverbs.BusyError].
func (wq *WQ) Close() error {
	return wq.self().Close(nil, func() error {
		device := sealed.Open(wq.pd.Device().Internals())
		device.UnregisterWQ(wq)
		if err := sibling.UnlessRemoved(wq.pd.Device(), libibverbs.DestroyWq(wq.raw)); err != nil {
			device.RegisterWQ(wq)
			return sibling.Wrap(wq.object.Name(), err)
		}
		device.ForgetWQ(wq)
		return nil
	})
}

// PostRecv posts the batch's receives in one call of C and returns how many it
// posted, which is all of them unless it fails. If a receive cannot be posted,
// the error is an *[ibverbs.PostError]. The batch can be changed or posted
// again at once. Memory regions must stay open until the receives that use them
// have completed.
func (wq *WQ) PostRecv(b *ibverbs.RecvBatch) (int, error) {
	if wq == nil {
		return 0, wq.self().Use()
	}
	return sealed.Open(b.Internals()).Post(&wq.object, wq.post)
}
