// SPDX-License-Identifier: Apache-2.0

package sibling

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// Request is a send request, without its destination.
type Request struct {
	ID       uint64
	Op       libibverbs.WrOpcode // IBV_WR_SEND, _SEND_WITH_IMM, _RDMA_WRITE, _RDMA_WRITE_WITH_IMM or _RDMA_READ
	Flags    ibverbs.SendFlags
	Imm      uint32 // immediate data in the host's byte order
	Remote   ibverbs.RemoteBuffer
	Segments []ibverbs.Segment
	AH       *ibverbs.AH // address handle of the destination
}

// Sender posts requests to a queue pair with the ibv_wr functions. Concurrent
// calls wait for each other in Go, without holding a thread, instead of for the
// driver's lock.
type Sender struct {
	mutex sync.Mutex
	qp    *ibverbs.QP
	ex    *libibverbs.QpEx
}

// Ops are the requests that a queue pair with a Sender must be able to post.
const Ops = libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM |
	libibverbs.IBV_QP_EX_WITH_RDMA_WRITE | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_READ

// Init prepares s for a queue pair that was made with QPConfig.SendOps.
func (s *Sender) Init(qp *ibverbs.QP) (ex *libibverbs.QpEx, err error) {
	s.qp = qp
	s.ex, err = libibverbs.QpToQpEx(qp.Raw())
	return s.ex, err
}

const opPost = "ibv_wr_start"

// Post posts all of the requests, or none. It calls setAddress for each
// request, at index i, to set its destination. The queue pair must be in use.
func (s *Sender) Post(requests []Request, setAddress func(ex *libibverbs.QpEx, i int) error) error {
	sges, done, err := s.check(requests)
	if err != nil {
		return err
	}
	defer done()
	if len(requests) == 0 {
		return nil
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	runtime.LockOSThread() // the driver may hold a lock from start to complete
	defer runtime.UnlockOSThread()
	if err := libibverbs.WrStart(s.ex); err != nil {
		return Wrap(s.name(), err)
	}
	for i := range requests {
		if err := s.add(&requests[i], sges[i], func() error { return setAddress(s.ex, i) }); err != nil {
			_ = libibverbs.WrAbort(s.ex) // err has the details
			return s.refused(requests, i, err)
		}
	}
	// A driver refuses requests here, and then posts none.
	return Wrap(s.name(), libibverbs.WrComplete(s.ex))
}

func (s *Sender) name() string { return ObjectOf(s.qp).Name() }

func (s *Sender) refused(requests []Request, i int, err error) error {
	return &ibverbs.PostError{Index: i, ID: requests[i].ID, None: true, Err: Wrap(s.name(), err)}
}

// check returns the segments of each request, and keeps the address handles in
// use until done is called. If a request is wrong, the error is a *PostError.
func (s *Sender) check(requests []Request) (sges [][]libibverbs.Sge, done func(), err error) {
	var handles []*object.Object // handles that are in use until done is called
	done = func() {
		for _, ah := range handles {
			ah.Done()
		}
	}
	for i := range requests {
		placed, err := s.place(&requests[i])
		if err != nil {
			done()
			what := fmt.Sprintf("%v on %s", requests[i].Op, s.name())
			return nil, nil, s.refused(requests, i, cerr.Argument(opPost, what, err))
		}
		sges, handles = append(sges, placed), append(handles, ObjectOf(requests[i].AH))
	}
	return sges, done, nil
}

// place returns the segments of a request, and puts the request's address
// handle in use.
func (s *Sender) place(r *Request) ([]libibverbs.Sge, error) {
	if r.Flags&ibverbs.SendInline != 0 {
		return nil, cerr.InvalidAs(syscall.EOPNOTSUPP, "SendInline is not supported by this queue pair")
	}
	sges, err := AppendSGEs(nil, r.Segments, r.Op == libibverbs.IBV_WR_RDMA_READ)
	if err != nil {
		return nil, err
	}
	switch r.Op {
	case libibverbs.IBV_WR_RDMA_WRITE, libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM, libibverbs.IBV_WR_RDMA_READ:
		if err := sealed.Open(r.Remote.Internals()).Takes(lengthOf(sges)); err != nil {
			return nil, err
		}
	}
	if r.AH == nil {
		return nil, cerr.Invalid("the request has no address handle")
	}
	ah := ObjectOf(r.AH)
	if err := ah.Use(); err != nil {
		return nil, err
	}
	if err := NotOfDevice(s.qp.Device(), ah, r.AH.PD().Device()); err != nil {
		ah.Done()
		return nil, err
	}
	return sges, nil
}

// lengthOf returns the number of bytes of the segments.
func lengthOf(sges []libibverbs.Sge) (bytes uint64) {
	for i := range sges {
		bytes += uint64(sges[i].Length)
	}
	return bytes
}

// add adds a request to those that will be posted. If the queue pair cannot
// post it, because the driver lacks the operation, the error matches
// errors.ErrUnsupported.
func (s *Sender) add(r *Request, sges []libibverbs.Sge, setAddress func() error) error {
	s.ex.WrId, s.ex.WrFlags = r.ID, r.Flags
	var err error
	switch imm := libibverbs.NewBe32(r.Imm); r.Op {
	case libibverbs.IBV_WR_SEND:
		err = libibverbs.WrSend(s.ex)
	case libibverbs.IBV_WR_SEND_WITH_IMM:
		err = libibverbs.WrSendImm(s.ex, imm)
	case libibverbs.IBV_WR_RDMA_WRITE:
		err = libibverbs.WrRdmaWrite(s.ex, r.Remote.RKey, r.Remote.Addr)
	case libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM:
		err = libibverbs.WrRdmaWriteImm(s.ex, r.Remote.RKey, r.Remote.Addr, imm)
	case libibverbs.IBV_WR_RDMA_READ:
		err = libibverbs.WrRdmaRead(s.ex, r.Remote.RKey, r.Remote.Addr)
	default:
		err = cerr.Refuse(opPost, "", "Op is %v, which a queue pair of this package does not post", r.Op)
	}
	if err != nil {
		return err
	}
	if err := setAddress(); err != nil {
		return err
	}
	if len(sges) == 0 {
		return nil
	}
	return libibverbs.WrSetSgeList(s.ex, uint64(len(sges)), &sges[0])
}
