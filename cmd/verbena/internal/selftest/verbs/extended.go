// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"errors"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// Values of IBV_DEVICE_FLUSH_GLOBAL and IBV_DEVICE_ATOMIC_WRITE, which only
// device_cap_flags_ex of struct ibv_device_attr_ex has.
const (
	capFlushGlobal = 1 << 38
	capAtomicWrite = 1 << 40
)

var extended = []check.Check{
	{
		Name: "extended.requests", Proves: "every kind of request can be posted through the ibv_wr functions", Features: []check.Feature{check.Extended},
		Run: on(func(r *rig) {
			ops := r.sendOps()
			a, b := r.pairOf(ibverbs.QPConfig{SendOps: ops}, normal)
			for i, k := range r.kinds(func(request) bool { return true }) {
				clear(a.mr.Bytes())
				clear(b.mr.Bytes())
				mine, theirs := fill(a.mr.Bytes()[64:72], byte(i+1)), fill(b.mr.Bytes()[64:72], byte(i+100))
				if k.receive {
					segments := []ibverbs.Segment{b.mr.Sub(64, 8)}
					if k.remote {
						segments = nil
					}
					b.receive(1, segments...)
				}
				a.post(func(s *ibverbs.SendBatch) error {
					return flagged(s, k.add(s, b.mr.Remote().Sub(64, 8), a.mr.Sub(64, 8)))
				})
				r.succeed(a.sendCQ, 1)
				if k.receive {
					r.succeed(b.recvCQ, 1)
				}
				if k.result {
					r.want(bytes.Equal(theirs, a.mr.Bytes()[64:72]), "%s: other bytes were returned", k.name)
				} else {
					r.want(bytes.Equal(mine, b.mr.Bytes()[64:72]), "%s: other bytes arrived", k.name)
				}
			}
		}),
	},
	{
		Name: "extended.refused", Proves: "a batch of which one request is wrong is posted whole or not at all", Features: []check.Feature{check.Extended, check.Diagnosis},
		Matters: "Only the error that a program gets differs.",
		Run: on(func(r *rig) {
			a, b := r.pairOf(ibverbs.QPConfig{SendOps: r.sendOps()}, normal)
			s := must(ibverbs.NewSendBatch(2, maxSegments))(r.T)
			ok(r.T, s.Write(1, b.mr.Remote().Sub(0, 8), ibverbs.SendSignaled, a.mr.Sub(0, 8)))
			n := a.qp.Cap().SendSegments + 1
			r.need(n <= maxSegments, "requests of fewer segments")
			var segments []ibverbs.Segment
			for range n {
				segments = append(segments, a.mr.Sub(0, 8))
			}
			ok(r.T, s.Write(2, b.mr.Remote().Sub(0, uint64(8*n)), ibverbs.SendSignaled, segments...))
			posted, err := a.qp.PostSend(s)
			v := refusal("EINVAL", "ENOMEM")
			v.SoftRoCE = []string{"ENOSPC"}
			r.Case("too many segments with ibv_wr", v, errno(err))
			r.want(posted == 0, "%d of the requests were posted", posted)
			r.nothing(a.sendCQ, "nothing was posted")
		}),
	},
	{
		Name: "extended.atomicwrite", Proves: "an atomic write changes 8 bytes", Features: []check.Feature{check.Extended},
		Run: on(func(r *rig) {
			r.need(r.attr.Capabilities&capAtomicWrite != 0, "atomic writes")
			a, b := r.opPair(libibverbs.IBV_QP_EX_WITH_ATOMIC_WRITE, "atomic writes")
			want := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
			a.post(func(s *ibverbs.SendBatch) error {
				return s.AtomicWrite(1, b.mr.Remote().Sub(8, 8), want, ibverbs.SendSignaled)
			})
			r.succeed(a.sendCQ, 1)
			r.want(bytes.Equal(want[:], b.mr.Bytes()[8:16]), "other bytes were written")
			r.untouched(b.mr.Bytes()[:8], "before them")
			r.untouched(b.mr.Bytes()[16:], "behind them")
		}),
	},
	{
		Name: "extended.flush", Proves: "a flush completes, if the region permits it", Features: []check.Feature{check.Extended}, Matters: statusMatters,
		Run: on(func(r *rig) {
			r.need(r.attr.Capabilities&capFlushGlobal != 0, "flushes")
			a, b := r.opPair(libibverbs.IBV_QP_EX_WITH_FLUSH, "flushes")
			r.connectedFlush(a, b)
		}),
	},
}

// sendOps returns the operations of the kinds of requests that the device has.
func (r *rig) sendOps() (ops ibverbs.SendOpsFlags) {
	of := map[string]ibverbs.SendOpsFlags{
		"send":                      libibverbs.IBV_QP_EX_WITH_SEND,
		"send with immediate data":  libibverbs.IBV_QP_EX_WITH_SEND_WITH_IMM,
		"write":                     libibverbs.IBV_QP_EX_WITH_RDMA_WRITE,
		"write with immediate data": libibverbs.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
		"read":                      libibverbs.IBV_QP_EX_WITH_RDMA_READ,
		"fetch and add":             libibverbs.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
		"compare and swap":          libibverbs.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	}
	for _, k := range r.kinds(func(request) bool { return true }) {
		ops |= of[k.name]
	}
	return ops
}

// opPair makes a pair whose ends may post an extended operation.
func (r *rig) opPair(op ibverbs.SendOpsFlags, what string) (a, b *end) {
	r.need(r.reads(), what)
	a, b = r.end(ibverbs.QPConfig{SendOps: op}), r.end(ibverbs.QPConfig{SendOps: op})
	access := r.access()
	if op == libibverbs.IBV_QP_EX_WITH_FLUSH {
		access |= ibverbs.AccessFlushGlobal
	}
	r.connectWith(a, b, normal, access, access)
	return a, b
}

// connectedFlush tries flushes of a region with and without the permission.
func (r *rig) connectedFlush(a, b *end) {
	mr, err := r.pd.Alloc(4096, full|ibverbs.AccessFlushGlobal)
	if errors.Is(err, errors.ErrUnsupported) {
		r.Lacks("flushes")
	}
	mr = keep(mr, err)(r.T)
	flush := func(at ibverbs.RemoteBuffer) string {
		a.post(func(s *ibverbs.SendBatch) error { return s.Flush(1, at, ibverbs.FlushGlobal, ibverbs.SendSignaled) })
		return statusName(r.completions(a.sendCQ, 1)[0].Status())
	}
	r.Case("flush of a region that permits it", good, flush(mr.Remote().Sub(0, 64)))
	r.Case("flush of a region that does not", remoteAccess, flush(b.mr.Remote().Sub(0, 64)))
}
