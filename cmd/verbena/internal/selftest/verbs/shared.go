// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"errors"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// sharedQueues are the shared receive queues.
var sharedQueues = []check.Check{
	{
		Name: "srq.messages", Proves: "queue pairs take receives from a shared queue, each once", Features: []check.Feature{check.Shared},
		Run: on(func(r *rig) {
			srq := r.srq(depth)
			mr := r.alloc(depth*64, full)
			a, b := r.srqPair(srq)
			c, d := r.srqPair(srq)
			for i := range 8 {
				r.shared(srq, uint64(i+1), mr.Sub(64*i, 64))
			}
			seen := map[uint64]bool{}
			for i := range 4 {
				for _, ends := range [][2]*end{{a, b}, {c, d}} {
					from, to := ends[0], ends[1]
					sent := fill(from.mr.Bytes()[:32], byte(i)+byte(from.qp.Num()))
					ok(r.T, from.trySendN(32))
					r.completions(from.sendCQ, 1)
					wc := r.completions(to.recvCQ, 1)[0]
					ok(r.T, wc.Err())
					r.want(!seen[wc.ID()] && wc.ID() >= 1 && wc.ID() <= 8, "the receive %d was taken before, or never posted", wc.ID())
					seen[wc.ID()] = true
					r.want(wc.QPNum() == to.qp.Num(), "queue pair %d instead of %d", wc.QPNum(), to.qp.Num())
					r.want(bytes.Equal(sent, mr.Bytes()[64*(wc.ID()-1):][:32]), "other bytes arrived")
				}
			}
		}),
	},
	{
		Name: "srq.none", Proves: "a sender waits while a shared queue is empty", Features: []check.Feature{check.Shared}, Matters: statusMatters,
		Run: on(func(r *rig) {
			srq := r.srq(depth)
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{SRQ: srq})
			r.connect(a, b, once)
			ok(r.T, a.trySend(0))
			r.Case("send, empty shared receive queue", spec(ibverbs.WCRNRRetryExceeded), statusName(r.completions(a.sendCQ, 1)[0].Status()))
			r.inState(b, ibverbs.QPStateRTS)
		}),
	},
	{
		Name: "srq.full", Proves: "a full shared queue refuses receives", Features: []check.Feature{check.Shared, check.Diagnosis}, Matters: "Programs that post more than the queue holds are told otherwise.",
		Run: on(func(r *rig) {
			srq := r.srq(4)
			room := must(srq.Query())(r.T).RecvQueue
			r.want(room >= 4, "room for %d receives instead of 4", room)
			const most = 1 << 12
			r.need(room < most, "shared receive queues of this size")
			b := must(ibverbs.NewRecvBatch(most, 0))(r.T)
			for i := range most {
				ok(r.T, b.Recv(uint64(i+1)))
			}
			n, err := srq.PostRecv(b)
			r.Case("receives into a full shared queue", refusal("ENOMEM"), errno(err))
			r.want(n >= 4 && n < most, "%d of %d receives were posted into a queue of %d", n, most, room)
		}),
	},
	{
		Name: "srq.resize", Proves: "a shared queue can be resized, and keeps what is in it", Features: []check.Feature{check.Shared, check.Changes},
		Run: on(func(r *rig) {
			srq := r.srq(4)
			a, b := r.srqPair(srq)
			r.shared(srq, 1, b.mr.Sub(0, 8))
			room := must(srq.Query())(r.T).RecvQueue
			r.need(2*room <= r.attr.MaxSRQWR, "larger shared receive queues")
			err := srq.Resize(2 * room)
			if errors.Is(err, errors.ErrUnsupported) || errno(err) == "EINVAL" {
				r.Lacks("resizing of shared receive queues")
			}
			ok(r.T, err)
			r.want(must(srq.Query())(r.T).RecvQueue >= 2*room, "the queue is not larger")
			ok(r.T, a.trySend(0))
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
		}),
	},
}

// srq makes a shared receive queue.
func (r *rig) srq(n int) *ibverbs.SRQ {
	r.need(r.attr.MaxSRQ > 0, "shared receive queues")
	return keep(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: n}))(r.T)
}

// srqPair makes a pair, whose second end takes receives from a shared queue.
func (r *rig) srqPair(srq *ibverbs.SRQ) (a, b *end) {
	a, b = r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{SRQ: srq})
	r.connect(a, b, normal)
	return a, b
}

// shared posts a receive to a shared queue.
func (r *rig) shared(srq *ibverbs.SRQ, id uint64, segments ...ibverbs.Segment) {
	b := must(ibverbs.NewRecvBatch(1, maxSegments))(r.T)
	ok(r.T, b.Recv(id, segments...))
	must(srq.PostRecv(b))(r.T)
}
