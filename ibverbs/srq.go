package ibverbs

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// SRQ is a shared receive queue: many queue pairs take their receives from it.
// Its methods may be called concurrently.
type SRQ struct {
	object  object.Object
	device  *Device
	pd      *PD
	srqType SRQType
	raw     *libibverbs.Srq
}

// SRQAttr is what a shared receive queue can hold, and when it warns.
type SRQAttr struct {
	MaxWR  int // receives
	MaxSGE int // segments of a receive
	Limit  int // an event comes when fewer receives are left; 0: none is to come
}

// CreateSRQ makes a shared receive queue; see ibv_create_srq(3) and
// ibv_create_srq_ex(3). It fails with errors.ErrUnsupported if the device does
// not have the type.
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
		return nil, pd.device.tooMuch(err, pd.object.Name(), config.sizes)
	}
	srq := &SRQ{device: pd.device, pd: pd, srqType: config.Type, raw: raw}
	srq.object.Init(fmt.Sprintf("SRQ %d of %s", raw.Handle, pd.device.Name()), parents...)
	register(unsafe.Pointer(raw), srq)
	return srq, nil
}

// PD returns the protection domain of the receives' memory.
func (srq *SRQ) PD() *PD { return srq.pd }

// Raw returns the C object, which is valid until Close.
func (srq *SRQ) Raw() *libibverbs.Srq { return srq.raw }

// Num returns the number by which the peers of extended reliable connections
// name the queue; see ibv_get_srq_num(3). Other queues have none, which is
// errors.ErrUnsupported.
func (srq *SRQ) Num() (uint32, error) {
	if err := srq.self().Use(); err != nil {
		return 0, err
	}
	defer srq.object.Done()
	n, err := libibverbs.GetSrqNum(srq.raw)
	return n, wrap(srq.object.Name(), err)
}

// Query asks the device for what the queue can hold, and its limit; see
// ibv_query_srq(3).
func (srq *SRQ) Query() (SRQAttr, error) {
	if err := srq.self().Use(); err != nil {
		return SRQAttr{}, err
	}
	defer srq.object.Done()
	var a libibverbs.SrqAttr
	if err := libibverbs.QuerySrq(srq.raw, &a); err != nil {
		return SRQAttr{}, wrap(srq.object.Name(), err)
	}
	return SRQAttr{MaxWR: int(a.MaxWr), MaxSGE: int(a.MaxSge), Limit: int(a.SrqLimit)}, nil
}

// SetLimit asks for one asynchronous event when fewer than n receives are
// left; see ibv_modify_srq(3). With 0 none is to come.
func (srq *SRQ) SetLimit(n int) error {
	return srq.modify("limit", n, &libibverbs.SrqAttr{SrqLimit: uint32(n)}, libibverbs.IBV_SRQ_LIMIT)
}

// Resize makes room for at least n receives; see ibv_modify_srq(3). Posted
// receives stay. Not every device can do it.
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
	return wrap(srq.object.Name(), libibverbs.ModifySrq(srq.raw, attr, int32(mask)))
}

// PostRecv posts the batch's receives in one call of C and returns how many
// were posted, which is all of them unless there is an error; see
// ibv_post_srq_recv(3). It does what QP.PostRecv does for a queue pair's own
// receives.
func (srq *SRQ) PostRecv(b *RecvBatch) (int, error) {
	return b.post(srq.self(), func(first *libibverbs.RecvWr) (bad *libibverbs.RecvWr, err error) {
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
// posted never complete. While queue pairs use it, Close does nothing and
// returns a BusyError.
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
