// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
)

var device = []check.Check{
	{
		Name: "libraries.layouts", Proves: "the structs of the installed libraries are laid out as this program has them", Features: all,
		Do: "The installed libibverbs has other structs than rdma-core's releases: do not use it. Report where it comes from.",
		Run: on(func(r *rig) {
			a, b := r.pair()
			ctx := r.dev.Raw()
			r.equal("ibv_context.num_comp_vectors", int(ctx.NumCompVectors), r.dev.CompVectors())
			r.want(ctx.NumCompVectors >= 1 && ctx.NumCompVectors < 1<<16, "ibv_context.num_comp_vectors is %d", ctx.NumCompVectors)
			cq := a.sendCQ.Raw()
			r.equal("ibv_cq.cqe", int(cq.Cqe), a.sendCQ.Cap())
			r.want(int(cq.Cqe) >= depth && int(cq.Cqe) < 1<<24, "ibv_cq.cqe is %d", cq.Cqe)
			r.want(cq.Context == ctx, "ibv_cq.context is not that of the device")
			qp := a.qp.Raw()
			r.equal("ibv_qp.qp_num", int(qp.QpNum), int(a.qp.Num()))
			r.want(qp.QpNum < 1<<24, "ibv_qp.qp_num is %#x, which has more than 24 bits", qp.QpNum)
			r.equal("ibv_qp.qp_type", int(qp.QpType), int(ibverbs.QPTypeRC))
			r.want(qp.Pd == r.pd.Raw() && qp.SendCq == cq && qp.RecvCq == a.recvCQ.Raw() && qp.Context == ctx, "ibv_qp has other objects than it was made with")
			mr := a.mr.Raw()
			r.equal("ibv_mr.length", int(mr.Length), pages)
			r.equal("ibv_mr.lkey", int(mr.Lkey), int(a.mr.LKey()))
			r.want(mr.Pd == r.pd.Raw(), "ibv_mr.pd is not the domain that it was made in")
			// A completion, with every field.
			b.receive(0x0102030405060708, b.mr.Sub(0, 64))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 33)) })
			r.succeed(a.sendCQ, 1)
			wc := r.completions(b.recvCQ, 1)[0]
			r.want(wc.ID() == 0x0102030405060708, "ibv_wc.wr_id is %#x", wc.ID())
			r.equal("ibv_wc.byte_len", wc.ByteLen(), 33)
			r.equal("ibv_wc.qp_num", int(wc.QPNum()), int(b.qp.Num()))
		}),
	},
	{
		Name: "libraries.errors", Proves: "calls that must fail return an error, with its errno", Features: []check.Feature{check.Diagnosis}, Matters: "Only the error that a program gets differs.",
		Run: on(func(r *rig) {
			_, err := r.dev.QueryPort(r.attr.Ports + 1)
			r.Case("port that does not exist", refusal("EINVAL"), errno(err))
			port := must(r.dev.QueryPort(r.Target().Port))(r.T)
			_, err = r.dev.QueryGID(r.Target().Port, port.GIDTableLen+1000)
			r.want(err != nil, "an entry behind the GID table can be read")
			_, err = r.dev.QueryPKey(r.Target().Port, port.PKeyTableLen+1000)
			r.want(err != nil, "an entry behind the P_Key table can be read")
			_, err = r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: 1 << 30})
			r.want(errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM), "a completion queue of 2^30 entries: %v", err)
			var failed *ibverbs.Error
			var argument *ibverbs.ArgumentError
			r.want(errors.As(err, &failed) || errors.As(err, &argument), "the error has no errno: %v", err)
		}),
	},
	{
		Name: "device.attributes", Proves: "the device says what it has, and has enough", Features: all,
		Run: on(func(r *rig) {
			for _, f := range []struct {
				what   string
				is, at int
			}{
				{"max_qp", r.attr.MaxQP, 2},
				{"max_qp_wr", r.attr.MaxQPWR, depth},
				{"max_sge", r.attr.MaxSGE, 1},
				{"max_cq", r.attr.MaxCQ, 2},
				{"max_cqe", r.attr.MaxCQE, depth},
				{"max_mr", r.attr.MaxMR, 2},
				{"max_pd", r.attr.MaxPD, 1},
				{"phys_port_cnt", r.attr.Ports, r.Target().Port},
			} {
				r.want(f.is >= f.at, "%s is %d, less than %d", f.what, f.is, f.at)
			}
			r.want(r.attr.MaxMRSize >= 1<<20, "max_mr_size is %d", r.attr.MaxMRSize)
		}),
	},
	{
		Name: "device.port", Proves: "the port is active, and says what it is", Features: all, Do: "Bring the port's link up; verbena doctor says how.",
		Run: on(func(r *rig) {
			p := must(r.dev.QueryPort(r.Target().Port))(r.T)
			r.want(p.State == link.Active, "the port is %v", p.State)
			r.want(p.ActiveMTU.Bytes() >= 256 && p.ActiveMTU.Bytes() <= p.MaxMTU.Bytes(), "the MTU is %d of %d bytes", p.ActiveMTU.Bytes(), p.MaxMTU.Bytes())
			r.want(p.GIDTableLen > 0, "the port has no GID table")
			r.want(p.MaxMessageSize >= 1<<16, "a message has at most %d bytes", p.MaxMessageSize)
			r.Notef("%v of %d bytes, messages of %d", p.LinkLayer, p.ActiveMTU.Bytes(), p.MaxMessageSize)
		}),
	},
	{
		Name: "device.gids", Proves: "the port has an address, which the table finds again", Features: []check.Feature{check.Connections, check.Datagrams},
		Run: on(func(r *rig) {
			gids := must(r.dev.QueryPortGIDs(r.Target().Port))(r.T)
			r.want(len(gids) > 0, "the port has no GID")
			for _, g := range gids {
				again := must(r.dev.QueryGID(g.Port, g.Index))(r.T)
				r.want(again == g.GID, "entry %d is another when it is asked for alone", g.Index)
			}
		}),
	},
	{
		Name: "device.twice", Proves: "the device can be opened twice, and objects of both are kept apart", Features: []check.Feature{check.Protection, check.Diagnosis}, Matters: statusMatters,
		Run: on(func(r *rig) {
			other := keep(ibverbs.Open(r.Target().Device))(r.T)
			pd := keep(other.AllocPD())(r.T)
			r.Reserve(4096)
			mr := keep(pd.Alloc(4096, full))(r.T)
			r.shut(mr.Remote().Sub(0, 8), "write to memory of another open device")
			r.untouched(mr.Bytes(), "of another open device")
		}),
	},
	{
		Name: "limits.exceeded", Proves: "what is above the device's limits is refused", Features: []check.Feature{check.Diagnosis}, Matters: "A program that asks for too much is told late, or not at all.",
		Run: on(func(r *rig) {
			cq := r.cq(depth)
			for _, tt := range []struct {
				what   string
				config ibverbs.QPConfig
			}{
				{"send queue above max_qp_wr", ibverbs.QPConfig{SendQueue: r.attr.MaxQPWR + 1, RecvQueue: 1}},
				{"receive queue above max_qp_wr", ibverbs.QPConfig{SendQueue: 1, RecvQueue: r.attr.MaxQPWR + 1}},
				{"segments above max_sge", ibverbs.QPConfig{SendQueue: 1, RecvQueue: 1, SendSegments: r.attr.MaxSGE + 1}},
				{"segments of receives above max_sge", ibverbs.QPConfig{SendQueue: 1, RecvQueue: 1, RecvSegments: r.attr.MaxSGE + 1}},
			} {
				tt.config.SendCQ, tt.config.RecvCQ = cq, cq
				qp, err := r.pd.CreateQP(tt.config)
				if err == nil {
					r.Close(qp)
				}
				r.limit(tt.what, err)
			}
			big, err := r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: r.attr.MaxCQE + 1})
			if err == nil {
				r.Close(big)
			}
			r.limit("completion queue above max_cqe", err)
		}),
	},
	{
		Name: "limits.reached", Proves: "queues of the lengths that the device says can be made, within bounds", Features: []check.Feature{check.Changes}, Matters: "Ask for less than the device says it has.",
		Run: on(func(r *rig) {
			const bound = 4096 // requests, so that the queues take less than a megabyte
			wr, cqe := min(r.attr.MaxQPWR, bound), min(r.attr.MaxCQE, bound)
			cq := r.cq(cqe)
			qp, err := r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: wr, RecvQueue: wr})
			r.need(!errors.Is(err, errors.ErrUnsupported), "reliable connections")
			if err != nil {
				skipLocked(r.T, err)
				r.Differf("a queue pair of %d requests, of the %d that the device says it has: %v", wr, r.attr.MaxQPWR, err)
			}
			r.Close(qp)
			r.want(qp.Cap().SendQueue >= wr && qp.Cap().RecvQueue >= wr, "queues of %d and %d instead of %d", qp.Cap().SendQueue, qp.Cap().RecvQueue, wr)
			r.Notef("%d requests, %d completions", wr, cqe)
		}),
	},
	{
		Name: "limits.reads", Proves: "16 reads can be in flight, or as many as the device has", Features: []check.Feature{check.Connections, check.Transfers},
		Run: on(func(r *rig) {
			r.need(r.reads(), "RDMA reads")
			n := min(r.attr.MaxQPReadAtomic, r.attr.MaxQPInitReadAtomic, 16) // ConnectTo asks for no more
			r.need(4*n <= r.attr.MaxQPWR, "send queues of four times its reads")
			a, b := r.end(ibverbs.QPConfig{SendQueue: 4 * n, SendCQ: r.cq(4 * n)}), r.end(ibverbs.QPConfig{})
			r.connect(a, b, normal)
			got, err := a.qp.Query()
			if !errors.Is(err, errors.ErrUnsupported) {
				ok(r.T, err)
				r.equal("reads in flight", got.MaxReadAtomic, n)
			}
			s := must(ibverbs.NewSendBatch(4*n, 1))(r.T)
			for i := range 4 * n {
				ok(r.T, s.Read(uint64(i+1), b.mr.Remote().Sub(0, 1024), ibverbs.SendSignaled, a.mr.Sub(0, 1024)))
			}
			must(a.qp.PostSend(s))(r.T)
			r.succeed(a.sendCQ, 4*n)
			r.Notef("%d reads", n)
		}),
	},
	{
		Name: "limits.connections", Proves: "64 connections work at a time, or as many as the device has", Features: all,
		Run: on(func(r *rig) {
			n := min(32, r.attr.MaxQP/2, r.attr.MaxCQ/4, r.attr.MaxMR/2)
			r.need(n > 1, "more than a pair of queue pairs")
			type pair struct{ a, b *end }
			var pairs []pair
			for range n {
				a, b := r.pair()
				pairs = append(pairs, pair{a, b})
			}
			for range 3 {
				for _, p := range pairs {
					p.b.receive(1, p.b.mr.Sub(0, 8))
					ok(r.T, p.a.trySend(0))
				}
				for _, p := range pairs {
					r.succeed(p.a.sendCQ, 1)
					r.succeed(p.b.recvCQ, 1)
				}
			}
			r.Notef("%d queue pairs", 2*n)
		}),
	},
	{
		Name: "device.parent", Proves: "queue pairs of a parent domain work", Features: []check.Feature{check.Extended},
		Run: on(func(r *rig) {
			td := offered(r.dev.AllocTD())(r.T, "thread domains")
			parent := offered(r.pd.AllocParentDomain(td))(r.T, "parent domains")
			cq := r.cq(depth)
			qp := offered(parent.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: depth, RecvQueue: depth}))(r.T, "reliable connections")
			a := &end{rig: r, qp: qp, sendCQ: cq, recvCQ: cq, mr: r.alloc(pages, full)}
			b := r.end(ibverbs.QPConfig{})
			r.connect(a, b, normal)
			b.receive(1, b.mr.Sub(0, 8))
			ok(r.T, a.trySend(0))
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
		}),
	},
	{
		Name: "device.vectors", Proves: "every interrupt vector wakes a goroutine", Features: []check.Feature{check.Waiting},
		Run: on(func(r *rig) {
			n := min(r.dev.CompVectors(), 64)
			for v := range n {
				r.Scope(func() {
					ch := keep(r.dev.CreateCompChannel())(r.T)
					cq := keep(r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: ch, Spin: -1, Vector: v}))(r.T)
					a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{RecvCQ: cq})
					r.connect(a, b, normal)
					for range 3 {
						b.receive(1, b.mr.Sub(0, 8))
						err := r.awaitSend(cq, a, 0)
						r.want(err == nil, "vector %d of %d: %v", v, n, err)
						r.completions(a.sendCQ, 1)
					}
				})
			}
			r.Notef("%d vectors", n)
		}),
	},
}

func (r *rig) equal(what string, got, want int) {
	r.want(got == want, "%s is %d instead of %d", what, got, want)
}

// limit adds a case for something above a limit.
func (r *rig) limit(what string, err error) {
	yours := errno(err)
	if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		yours = "refused"
	}
	r.Case(what, refusal("refused"), yours)
}
