// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// once tries again once, after a short time.
var once = ibverbs.ConnectConfig{Timeout: 30 * time.Millisecond, RetryCount: 1, RNRRetryCount: 1, MinRNRTimer: time.Millisecond}

// receives are the mistakes with receives, and what happens without an answer.
var receives = []check.Check{
	{
		Name: "receives.bad", Proves: "both ends learn of a receive that is too small or that the device cannot write", Features: guarded, Matters: statusMatters,
		Run: on(func(r *rig) {
			foreign, closed := r.foreign(), r.closed()
			operation := spec(ibverbs.WCRemoteOperation)
			protection := rxe(spec(ibverbs.WCLocalProtection), ibverbs.WCLocalQPOperation)
			tooLong := rxe(spec(ibverbs.WCRemoteInvalidRequest), ibverbs.WCRemoteOperation)
			length := rxe(spec(ibverbs.WCLocalLength), ibverbs.WCLocalQPOperation)
			for _, tt := range []struct {
				name           string
				receive        func(b *end) []ibverbs.Segment
				sender, taking check.Verdict
			}{
				{"too small", func(b *end) []ibverbs.Segment { return []ibverbs.Segment{b.mr.Sub(landing, 7)} }, tooLong, length},
				{"no segment", func(*end) []ibverbs.Segment { return nil }, tooLong, length},
				{"wrong key", func(b *end) []ibverbs.Segment {
					return []ibverbs.Segment{at(b.mr, landing, 8, b.mr.LKey()^0x5A)}
				}, operation, protection},
				{"key of a closed region", func(*end) []ibverbs.Segment {
					return []ibverbs.Segment{ibverbs.RawSegment(closed.remote.Addr, 8, closed.lkey)}
				}, operation, protection},
				{"key of another domain", func(*end) []ibverbs.Segment {
					return []ibverbs.Segment{at(foreign, 0, 8, foreign.LKey())}
				}, operation, protection},
				{"across the region's end", func(b *end) []ibverbs.Segment {
					return []ibverbs.Segment{at(b.mr, pages-4, 8, b.mr.LKey())}
				}, operation, protection},
			} {
				r.Scope(func() {
					a, b := r.pair()
					b.receive(2, tt.receive(b)...)
					a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, 0, a.mr.Sub(0, 8)) })
					r.Case("receive, "+tt.name+": sender", tt.sender, statusName(r.completions(a.sendCQ, 1)[0].Status()))
					wc := r.completions(b.recvCQ, 1)[0]
					r.Case("receive, "+tt.name+": receiver", tt.taking, statusName(wc.Status()))
					r.want(wc.ID() == 2, "the receive's completion has the ID %d instead of 2", wc.ID())
				})
			}
			r.untouched(foreign.Bytes(), "of another domain's region")
		}),
	},
	{
		Name: "receives.room", Proves: "a receive that extends past its region is good for a message that does not", Features: []check.Feature{check.Diagnosis}, Matters: statusMatters,
		Run: on(func(r *rig) {
			a, b := r.pair()
			b.receive(2, at(b.mr, landing, pages, b.mr.LKey()))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			r.Case("receive that extends past its region: sender", good, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			r.Case("receive that extends past its region: receiver", good, statusName(r.completions(b.recvCQ, 1)[0].Status()))
		}),
	},
	{
		Name: "receives.none", Proves: "without a receive the sender tries as often as asked, and the peer goes on", Features: all, Matters: statusMatters,
		Run: on(func(r *rig) {
			for _, k := range r.kinds(func(k request) bool { return k.receive }) {
				r.Scope(func() {
					a, b := r.pairOf(ibverbs.QPConfig{}, once)
					a.post(func(s *ibverbs.SendBatch) error { return k.add(s, b.mr.Remote().Sub(0, 8), a.mr.Sub(64, 8)) })
					r.Case(k.name+", no receive", spec(ibverbs.WCRNRRetryExceeded), statusName(r.completions(a.sendCQ, 1)[0].Status()))
					r.want(r.is(b, ibverbs.QPStateRTS), "the peer's queue pair does not go on")
					r.nothing(b.recvCQ, "there was no receive")
				})
			}
		}),
	},
	{
		Name: "receives.late", Proves: "a sender that tries without end sends when a receive is posted", Features: all,
		Run: on(func(r *rig) {
			of := normal
			of.RNRRetryCount, of.MinRNRTimer = ibverbs.RNRRetryForever, 10*time.Millisecond
			a, b := r.pairOf(ibverbs.QPConfig{}, of)
			fill(a.mr.Bytes()[:8], 3)
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			var wcs [1]ibverbs.WC
			for range 20 {
				n := must(a.sendCQ.Spin(wcs[:], ibverbs.MaxSpin))(r.T)
				r.want(n == 0, "a message without a receive completes: %v", wcs[0].Status())
			}
			start := time.Now()
			b.receive(1, b.mr.Sub(0, 8))
			r.succeed(a.sendCQ, 1)
			r.succeed(b.recvCQ, 1)
			r.Notef("sent %v after the receive, with a timer of 10 ms", time.Since(start).Round(time.Millisecond))
		}),
	},
	{
		Name: "receives.absent", Proves: "a peer that does not answer ends the connection within the timeouts", Features: all, Matters: statusMatters,
		Run: on(func(r *rig) {
			for _, tt := range []struct {
				name string
				do   func(b *end) error
			}{
				{"reset", func(b *end) error { return b.qp.ToReset() }},
				{"in error", func(b *end) error { return b.qp.SetError() }},
				{"closed", func(b *end) error { return b.qp.Close() }},
			} {
				r.Scope(func() {
					a, b := r.pairOf(ibverbs.QPConfig{}, once)
					ok(r.T, tt.do(b))
					start := time.Now()
					a.post(func(s *ibverbs.SendBatch) error { return s.Write(1, b.mr.Remote().Sub(0, 8), 0, a.mr.Sub(0, 8)) })
					r.Case("peer that was "+tt.name, noAnswer, statusName(r.completions(a.sendCQ, 1)[0].Status()))
					r.Notef("a peer that is %s is given up after %v", tt.name, time.Since(start).Round(time.Millisecond))
				})
			}
		}),
	},
	{
		Name: "receives.refused", Proves: "a write with immediate data that the peer refuses fails the peer's receive", Features: []check.Feature{check.Diagnosis}, Matters: statusMatters,
		Run: on(func(r *rig) {
			r.need(r.immediate(), "immediate data")
			a, b := r.pair()
			b.receive(2, b.mr.Sub(landing, 8))
			a.post(func(s *ibverbs.SendBatch) error {
				return s.WriteImm(1, cut(withKey(b.mr.Remote(), b.mr.RKey()^0x5A)), 7, 0, a.mr.Sub(0, 8))
			})
			r.Case("refused write with immediate data: sender", remoteAccess, statusName(r.completions(a.sendCQ, 1)[0].Status()))
			r.Case("refused write with immediate data: receiver", rxe(spec(ibverbs.WCLocalAccess), ibverbs.WCRemoteAccess),
				statusName(r.completions(b.recvCQ, 1)[0].Status()))
		}),
	},
}
