// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/internal/object"
)

// SRQ is a shared receive queue, from which many queue pairs take their
// receives. Its methods may be called concurrently.
type SRQ struct {
	object  object.Object
	device  *Device
	pd      *PD
	srqType SRQType
	raw     *libibverbs.Srq
}

// SRQAttr holds the size and the limit of a shared receive queue.
type SRQAttr struct {
	RecvQueue    int // maximum number of posted receives
	RecvSegments int // maximum number of segments in a receive
	Limit        int // number of receives below which an event is reported; 0 means no event
}

// CreateSRQ creates a shared receive queue; see ibv_create_srq(3) and
// ibv_create_srq_ex(3). It fails with an error matching errors.ErrUnsupported
// if the device lacks the type.
func (pd *PD) CreateSRQ(config SRQConfig) (*SRQ, error) {
	parents, contexts := config.parents()
	parents = append([]*object.Object{pd.self()}, parents...)
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := config.check(pd); err != nil {
		return nil, err
	}
	for i, c := range contexts {
		if err := sameDevice("ibv_create_srq", pd.object.Name(), pd.device.raw, parents[i+1], c.raw); err != nil {
			return nil, err
		}
	}
	raw, err := config.create(pd)
	if err != nil {
		err = pd.device.explain(err, sharedReceiveQueues, leastRequest*config.RecvQueue)
		return nil, pd.device.tooMuch(err, pd.object.Name(), config.sizes)
	}
	srq := &SRQ{device: pd.device, pd: pd, srqType: config.Type, raw: raw}
	srq.object.Init(fmt.Sprintf("SRQ %d of %s", raw.Handle, pd.device.Name()), parents...)
	register(unsafe.Pointer(raw), srq)
	return srq, nil
}

// Type returns the type of the queue.
func (srq *SRQ) Type() SRQType { return srq.srqType }

// PD returns the protection domain of the queue.
func (srq *SRQ) PD() *PD { return srq.pd }

// Raw returns the C object, which is valid until Close.
func (srq *SRQ) Raw() *libibverbs.Srq { return srq.raw }

// Num returns the number by which peers of extended reliable connections
// address the queue; see ibv_get_srq_num(3). It fails with an error matching
// errors.ErrUnsupported for other queues.
func (srq *SRQ) Num() (uint32, error) {
	if err := srq.self().Use(); err != nil {
		return 0, err
	}
	defer srq.object.Done()
	n, err := libibverbs.GetSrqNum(srq.raw)
	return n, wrap(srq.object.Name(), err)
}

// Query asks the device for the queue's size and limit; see ibv_query_srq(3).
func (srq *SRQ) Query() (SRQAttr, error) {
	if err := srq.self().Use(); err != nil {
		return SRQAttr{}, err
	}
	defer srq.object.Done()
	var a libibverbs.SrqAttr
	if err := libibverbs.QuerySrq(srq.raw, &a); err != nil {
		return SRQAttr{}, wrap(srq.object.Name(), err)
	}
	return SRQAttr{RecvQueue: int(a.MaxWr), RecvSegments: int(a.MaxSge), Limit: int(a.SrqLimit)}, nil
}

// SetLimit requests one asynchronous event when fewer than n receives are left;
// see ibv_modify_srq(3). If n is 0, there is no event.
func (srq *SRQ) SetLimit(n int) error {
	return srq.modify("limit", n, &libibverbs.SrqAttr{SrqLimit: uint32(n)}, libibverbs.IBV_SRQ_LIMIT)
}

// Resize makes room for at least n receives; see ibv_modify_srq(3). Posted
// receives stay. Not every device supports resizing.
func (srq *SRQ) Resize(n int) error {
	return srq.modify("size", n, &libibverbs.SrqAttr{MaxWr: uint32(n)}, libibverbs.IBV_SRQ_MAX_WR)
}

func (srq *SRQ) modify(what string, n int, attr *libibverbs.SrqAttr, mask libibverbs.SrqAttrMask) error {
	if err := srq.self().Use(); err != nil {
		return err
	}
	defer srq.object.Done()
	if err := inRange(what, n, 0, math.MaxInt32); err != nil {
		return cerr.Argument("ibv_modify_srq", srq.object.Name(), err)
	}
	return wrap(srq.object.Name(), libibverbs.ModifySrq(srq.raw, attr, mask))
}

// PostRecv posts the batch's receives in one call of C and returns how many it
// posted, which is all of them unless it fails; see ibv_post_srq_recv(3). If a
// receive cannot be posted, the error is a *PostError. The batch can be changed
// or posted again at once. Memory regions must stay open until the receives
// that use them have completed.
func (srq *SRQ) PostRecv(b *RecvBatch) (int, error) {
	return b.post(srq.self(), func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error) {
		if datapath.Begin() {
			defer datapath.End()
		}
		err = libibverbs.PostSrqRecv(srq.raw, first, &bad)
		return bad, err
	})
}

func (srq *SRQ) self() *object.Object {
	if srq == nil {
		return nil
	}
	return &srq.object
}

// Close destroys the queue; see ibv_destroy_srq(3). Receives that are still
// posted never complete. While queue pairs use the queue, Close does nothing
// and returns a *BusyError.
func (srq *SRQ) Close() error {
	return srq.self().Close(nil, func() error {
		handle := srq.raw.Handle
		unregister(unsafe.Pointer(srq.raw))
		if err := srq.device.unlessRemoved(libibverbs.DestroySrq(srq.raw)); err != nil {
			register(unsafe.Pointer(srq.raw), srq)
			return wrap(srq.object.Name(), err)
		}
		srq.device.forgetEvents(srq, EventClassSRQ, handle)
		return nil
	})
}

// SRQType is the type of a shared receive queue.
type SRQType = libibverbs.SrqType

// The types of shared receive queues.
const (
	SRQTypeBasic       SRQType = libibverbs.IBV_SRQT_BASIC // for queue pairs that were created with the queue
	SRQTypeXRC         SRQType = libibverbs.IBV_SRQT_XRC   // for extended reliable connections that address the queue
	SRQTypeTagMatching SRQType = libibverbs.IBV_SRQT_TM    // for messages that are matched to receives by tag; see package tag
)

// SRQConfig is the configuration of a shared receive queue.
type SRQConfig struct {
	Type         SRQType // 0 means SRQTypeBasic
	RecvQueue    int     // maximum number of posted receives
	RecvSegments int     // maximum number of segments in a receive; 0 means 1

	XRCD *XRCD // required for SRQTypeXRC, nil for other types
	CQ   *CQ   // required for SRQTypeXRC and SRQTypeTagMatching, nil for SRQTypeBasic

	// Maximum numbers of receives in the tag list and of operations on the
	// list in progress, only for SRQTypeTagMatching.
	MaxTags, MaxTagOps int
}

func (c SRQConfig) check(pd *PD) error {
	const op = "ibv_create_srq"
	bad := func(format string, args ...any) error { return cerr.Refuse(op, pd.object.Name(), format, args...) }
	err := firstError(
		inRange("RecvQueue", c.RecvQueue, 1, math.MaxInt32),
		inRange("RecvSegments", c.RecvSegments, 0, math.MaxInt32),
		inRange("MaxTags", c.MaxTags, 0, math.MaxInt32),
		inRange("MaxTagOps", c.MaxTagOps, 0, math.MaxInt32),
	)
	if err != nil {
		return cerr.Argument(op, pd.object.Name(), err)
	}
	tm := c.Type == SRQTypeTagMatching
	switch {
	case c.Type > SRQTypeTagMatching:
		return bad("Type is %v, which this package does not make", c.Type)
	case (c.XRCD != nil) != (c.Type == SRQTypeXRC):
		return bad("XRCD is needed for SRQTypeXRC, and for no other type")
	case (c.CQ != nil) != (c.Type != SRQTypeBasic):
		return bad("CQ is needed for all types but SRQTypeBasic, which has none")
	case (c.MaxTags != 0 || c.MaxTagOps != 0) && !tm, tm && (c.MaxTags == 0 || c.MaxTagOps == 0):
		return bad("MaxTags and MaxTagOps are needed for SRQTypeTagMatching, and for no other type")
	}
	return nil
}

// parents returns the objects that the queue needs besides its domain, and the
// open device of each.
func (c SRQConfig) parents() (objects []*object.Object, contexts []*Device) {
	if c.XRCD != nil {
		objects, contexts = append(objects, c.XRCD.self()), append(contexts, c.XRCD.device)
	}
	if c.CQ != nil {
		objects, contexts = append(objects, c.CQ.self()), append(contexts, c.CQ.device)
	}
	return objects, contexts
}

func (c SRQConfig) sizes(a DeviceAttr) []size {
	return []size{{"RecvQueue", c.RecvQueue, a.MaxSRQWR}, {"RecvSegments", c.RecvSegments, a.MaxSRQSGE}}
}

func (c SRQConfig) create(pd *PD) (*libibverbs.Srq, error) {
	size := libibverbs.SrqAttr{MaxWr: uint32(c.RecvQueue), MaxSge: uint32(max(c.RecvSegments, 1))}
	if c.Type == SRQTypeBasic {
		return libibverbs.CreateSrq(pd.raw, &libibverbs.SrqInitAttr{Attr: size})
	}
	attr := libibverbs.SrqInitAttrEx{
		Attr: size, SrqType: c.Type, Pd: pd.raw, Cq: c.CQ.raw,
		CompMask: libibverbs.IBV_SRQ_INIT_ATTR_TYPE | libibverbs.IBV_SRQ_INIT_ATTR_PD | libibverbs.IBV_SRQ_INIT_ATTR_CQ,
	}
	if c.Type == SRQTypeXRC {
		attr.CompMask |= libibverbs.IBV_SRQ_INIT_ATTR_XRCD
		attr.Xrcd = c.XRCD.raw
	} else {
		attr.CompMask |= libibverbs.IBV_SRQ_INIT_ATTR_TM
		attr.TmCap = libibverbs.TmCap{MaxNumTags: uint32(c.MaxTags), MaxOps: uint32(c.MaxTagOps)}
	}
	return libibverbs.CreateSrqEx(pd.device.raw, &attr)
}
