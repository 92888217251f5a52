// SPDX-License-Identifier: Apache-2.0

package efa

import (
	"errors"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libefa"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/sealed"
)

// QPFlags are options of a new queue pair; combine them with |.
type QPFlags = libefa.QpFlags

// The options of a new queue pair. [Attr].Caps tells which of them the adapter
// supports.
const (
	UnsolicitedWriteRecv QPFlags = libefa.EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV // a WriteImm of a peer completes no receive
	InlineWrite          QPFlags = libefa.EFADV_QP_FLAGS_INLINE_WRITE
)

// QPConfig is the configuration of a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ             *ibverbs.CQ
	SendQueue, RecvQueue       int // maximum numbers of posted requests
	SendSegments, RecvSegments int // maximum numbers of segments in a request; 0 means 1
	SignalAll                  bool
	Flags                      QPFlags

	// RDMA lets the queue pair post reads and writes. It needs an adapter
	// with CapRDMARead and CapRDMAWrite.
	RDMA bool

	ServiceLevel uint8 // service level; every adapter supports 0
}

// QP is an SRD queue pair. Its methods may be called concurrently.
type QP struct {
	qp     *ibverbs.QP
	sender sibling.Sender
}

// CreateQP creates a queue pair in the reset state; see efadv_create_qp_ex(3).
func CreateQP(pd *ibverbs.PD, config QPConfig) (*QP, error) {
	ops := libibverbs.IBV_QP_EX_WITH_SEND | libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM
	if config.RDMA {
		ops = sibling.Ops
	}
	create := func(attr *libibverbs.QpInitAttrEx) (*libibverbs.Qp, func() error, error) {
		efa := libefa.QpInitAttr{
			DriverQpType: libefa.EFADV_QP_DRIVER_TYPE_SRD, Flags: uint16(config.Flags), Sl: config.ServiceLevel,
		}
		raw, err := libefa.CreateQpEx(pd.Device().Raw(), attr, &efa, uint32(unsafe.Sizeof(efa)))
		return raw, func() error { return libibverbs.DestroyQp(raw) }, err
	}
	verbs, err := sealed.Open(pd.Internals()).NewDriverQP(ibverbs.QPConfig{
		SendCQ: config.SendCQ, RecvCQ: config.RecvCQ, SendQueue: config.SendQueue, RecvQueue: config.RecvQueue,
		SendSegments: config.SendSegments, RecvSegments: config.RecvSegments, SignalAll: config.SignalAll, SendOps: ops,
	}, create)
	if err != nil {
		return nil, err
	}
	qp := &QP{qp: verbs}
	if _, err := qp.sender.Init(verbs); err != nil {
		return nil, errors.Join(err, verbs.Close())
	}
	return qp, nil
}

// Verbs returns the underlying queue pair, for receives, events and the state.
// It returns nil for a nil QP.
func (qp *QP) Verbs() *ibverbs.QP {
	if qp == nil {
		return nil
	}
	return qp.qp
}

// Num returns the queue pair's number, by which peers address it.
func (qp *QP) Num() uint32 {
	if qp.Verbs() == nil {
		return 0
	}
	return qp.qp.Num()
}

// Close destroys the queue pair, as [ibverbs.QP.Close] does.
func (qp *QP) Close() error { return qp.Verbs().Close() }

// Path holds the attributes that QP.Start sets.
type Path struct {
	Port      int
	PKeyIndex int
	QKey      uint32 // key that datagrams to the queue pair must carry
	SendPSN   uint32 // sequence number of the first packet, 24 bits
}

// Start moves the queue pair from the reset state to ready to send, by three
// calls of ibv_modify_qp(3).
func (qp *QP) Start(path Path) error {
	for _, step := range []struct {
		attr ibverbs.QPAttr
		mask ibverbs.QPAttrMask
	}{
		{
			ibverbs.QPAttr{State: ibverbs.QPStateInit, Port: path.Port, PKeyIndex: path.PKeyIndex, QKey: path.QKey},
			ibverbs.QPAttrState | ibverbs.QPAttrPort | ibverbs.QPAttrPKeyIndex | ibverbs.QPAttrQKey,
		},
		{ibverbs.QPAttr{State: ibverbs.QPStateRTR}, ibverbs.QPAttrState},
		{ibverbs.QPAttr{State: ibverbs.QPStateRTS, SendPSN: path.SendPSN}, ibverbs.QPAttrState | ibverbs.QPAttrSendPSN},
	} {
		if err := qp.Verbs().Modify(step.attr, step.mask); err != nil {
			return err
		}
	}
	return nil
}

// Op is the operation of a request.
type Op = libibverbs.WrOpcode

// The operations. All but the first two need QPConfig.RDMA.
const (
	Send     Op = libibverbs.IBV_WR_SEND
	SendImm  Op = libibverbs.IBV_WR_SEND_WITH_IMM
	Write    Op = libibverbs.IBV_WR_RDMA_WRITE
	WriteImm Op = libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM
	Read     Op = libibverbs.IBV_WR_RDMA_READ
)

// Request is a send request.
type Request struct {
	Op       Op
	ID       uint64 // ID of the completion
	Flags    ibverbs.SendFlags
	To       ibverbs.Destination
	Remote   ibverbs.RemoteBuffer // memory of the peer, for Write, WriteImm and Read
	Imm      uint32               // immediate data for SendImm and WriteImm, in the host's byte order
	Segments []ibverbs.Segment
}

// Post posts all of the requests, or none; see ibv_wr_start(3). If a request
// cannot be posted, the error is an *[ibverbs.PostError]. Memory regions must
// stay open until the requests that use them have completed, and
// address handles until Post returns. [ibverbs.SendInline] is not supported.
// Each request costs a few calls of C.
func (qp *QP) Post(requests ...Request) error {
	o := sibling.ObjectOf(qp.Verbs())
	if err := o.Use(); err != nil {
		return err
	}
	defer o.Done()
	all := make([]sibling.Request, len(requests))
	for i, r := range requests {
		all[i] = sibling.Request{
			ID: r.ID, Op: r.Op, Flags: r.Flags, Imm: r.Imm, Remote: r.Remote, Segments: r.Segments, AH: r.To.AH,
		}
	}
	return qp.sender.Post(all, func(ex *libibverbs.QpEx, i int) error {
		to := requests[i].To
		return libibverbs.WrSetUdAddr(ex, to.AH.Raw(), to.QPNum, to.QKey)
	})
}
