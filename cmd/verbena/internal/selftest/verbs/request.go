// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// request is a kind of request of a reliable connection, on 8 bytes of this
// end's memory and of the peer's.
type request struct {
	name    string
	remote  bool // it names the peer's memory
	result  bool // the device writes this end's memory
	receive bool // it takes a receive of the peer's
	atomic  bool
	imm     bool
	add     func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error
}

// requests are all kinds, with ID 1. They are not signaled: a failure completes
// all the same.
var requests = []request{
	{name: "send", receive: true, add: func(s *ibverbs.SendBatch, _ ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Send(1, 0, local)
	}},
	{name: "send with immediate data", receive: true, imm: true, add: func(s *ibverbs.SendBatch, _ ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.SendImm(1, 7, 0, local)
	}},
	{name: "write", remote: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Write(1, remote, 0, local)
	}},
	{name: "write with immediate data", remote: true, receive: true, imm: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.WriteImm(1, remote, 7, 0, local)
	}},
	{name: "read", remote: true, result: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.Read(1, remote, 0, local)
	}},
	{name: "fetch and add", remote: true, result: true, atomic: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.FetchAdd(1, remote, 1, 0, local)
	}},
	{name: "compare and swap", remote: true, result: true, atomic: true, add: func(s *ibverbs.SendBatch, remote ibverbs.RemoteBuffer, local ibverbs.Segment) error {
		return s.CompareSwap(1, remote, 0, 1, 0, local)
	}},
}

// kinds returns the kinds of requests that the device has and that match.
func (r *rig) kinds(match func(k request) bool) (all []request) {
	immediate := r.immediate()
	for _, k := range requests {
		if match(k) && (!k.atomic || r.atomics()) && (!k.result || r.reads()) && (!k.imm || immediate) {
			all = append(all, k)
		}
	}
	return all
}

func (k request) sends() bool  { return !k.result }
func (k request) writes() bool { return k.result } // this end's memory

// immediate reports whether the device has immediate data, which few iWARP
// devices have, and all others should.
func (r *rig) immediate() (has bool) {
	if !r.iWARP() {
		return !r.refusesImmediate()
	}
	r.Scope(func() {
		cq := r.cq(1)
		qp, err := r.pd.CreateQP(ibverbs.QPConfig{
			SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1,
			SendOps: libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM | libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
		})
		if has = err == nil; has {
			r.Close(qp)
		}
	})
	return has
}

// refusesImmediate reports whether a connection refuses to post immediate data.
func (r *rig) refusesImmediate() (refuses bool) {
	r.Scope(func() {
		cq := r.cq(1)
		one := ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}
		if qp, err := r.pd.CreateQP(one); errors.Is(err, errors.ErrUnsupported) {
			return // there are no connections
		} else if err == nil {
			r.Close(qp)
		}
		a, _ := r.pair()
		s := must(ibverbs.NewSendBatch(1, 0))(r.T)
		ok(r.T, s.SendImm(1, 7, 0))
		_, err := a.qp.PostSend(s)
		refuses = errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported)
	})
	return refuses
}

// beyond returns n bytes of a peer's memory, which Sub would refuse.
func beyond(b ibverbs.RemoteBuffer, offset, n int) ibverbs.RemoteBuffer {
	return ibverbs.RemoteBuffer{Addr: b.Addr + uint64(offset), RKey: b.RKey, Len: uint64(n)}
}

// at returns memory by its numbers, which no batch checks.
func at(mr *ibverbs.MR, offset, n int, lkey uint32) ibverbs.Segment {
	return ibverbs.RawSegment(mr.Remote().Addr+uint64(offset), n, lkey)
}
