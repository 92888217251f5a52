// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// states are what queue pairs do in their states.
var states = []check.Check{
	{
		Name: "states.walk", Proves: "a queue pair goes through its states, and can be used again after a reset", Features: all,
		Run: on(func(r *rig) {
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{})
			for range 3 {
				r.inState(a, ibverbs.QPStateReset)
				r.connect(a, b, normal)
				r.inState(a, ibverbs.QPStateRTS)
				b.receive(1, b.mr.Sub(0, 8))
				a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
				r.succeed(a.sendCQ, 1)
				r.succeed(b.recvCQ, 1)
				for _, e := range []*end{a, b} {
					ok(r.T, e.qp.SetError())
					r.inState(e, ibverbs.QPStateError)
					ok(r.T, e.qp.ToReset())
				}
			}
		}),
	},
	{
		Name: "states.attributes", Proves: "a connected queue pair says what it was told", Features: []check.Feature{check.Connections, check.Diagnosis},
		Run: on(func(r *rig) {
			a, b := r.pair()
			got, err := a.qp.Query()
			if errors.Is(err, errors.ErrUnsupported) {
				r.Lacks("queries of queue pairs")
			}
			ok(r.T, err)
			for _, f := range []struct {
				what      string
				got, want int
			}{
				{"number of the peer", int(got.DestQPNum), int(b.qp.Num())},
				{"first number to send", int(got.SendPSN), int(a.addr.PSN)},
				{"first number to receive", int(got.RecvPSN), int(b.addr.PSN)},
				{"port", got.Port, a.addr.Port},
				{"retry count", got.RetryCount, normal.RetryCount},
				{"RNR retry count", got.RNRRetryCount, ibverbs.RNRRetryForever},
				{"MTU", got.PathMTU.Bytes(), min(a.addr.MTU, b.addr.MTU).Bytes()},
				{"state", int(got.State), int(ibverbs.QPStateRTS)},
			} {
				if f.got != f.want {
					r.Differf("%s: %d instead of %d", f.what, f.got, f.want)
				}
			}
		}),
		Matters: "Only programs that query queue pairs notice.",
	},
	{
		Name: "states.early", Proves: "a send that is posted too early is refused, and a receive waits", Features: []check.Feature{check.Diagnosis},
		Run: on(func(r *rig) {
			a := r.end(ibverbs.QPConfig{})
			r.Case("send in the state reset", refusal("EINVAL"), errno(a.postOne()))
			b := must(ibverbs.NewRecvBatch(1, 1))(r.T)
			ok(r.T, b.Recv(1))
			_, err := a.qp.PostRecv(b)
			r.Case("receive in the state reset", refusal("EINVAL"), errno(err))
		}),
		Matters: "A program that posts too early is not told.",
	},
	{
		Name: "states.flush", Proves: "what was posted completes as flushed, in its order, when a queue pair fails", Features: all, Matters: statusMatters,
		Run: on(func(r *rig) {
			a, b := r.pairOf(ibverbs.QPConfig{}, once)
			for i := range depth {
				a.receive(uint64(i+1), a.mr.Sub(landing, 8))
			}
			a.post(func(s *ibverbs.SendBatch) error {
				err := s.Write(1, cut(withKey(b.mr.Remote(), b.mr.RKey()^0x5A)), 0, a.mr.Sub(0, 8))
				for i := 2; i <= depth && err == nil; i++ {
					err = s.Write(uint64(i), b.mr.Remote().Sub(0, 8), 0, a.mr.Sub(0, 8))
				}
				return err
			})
			wcs := r.completions(a.sendCQ, depth)
			r.Case("request that fails", remoteAccess, statusName(wcs[0].Status()))
			r.flushed("request behind one that fails", wcs[1:], 2)
			r.flushed("receive of a queue pair that fails", r.completions(a.recvCQ, depth), 1)
			err := a.postOne()
			v := refusal(check.Succeeds)
			v.UserSpace = []string{check.Succeeds, "EINVAL"} // with the limits of cards that refuse it
			r.Case("send posted in the state error", v, errno(err))
			if err == nil {
				r.flushed("send posted in the state error", r.completions(a.sendCQ, 1), 1)
			}
		}),
	},
	{
		Name: "states.reset", Proves: "a reset drops everything that was posted, without completions", Features: []check.Feature{check.Connections},
		Run: on(func(r *rig) {
			a, b := r.pair()
			for i := range depth {
				a.receive(uint64(i+1), a.mr.Sub(landing, 8))
			}
			ok(r.T, a.qp.ToReset())
			ok(r.T, b.qp.ToReset())
			r.connect(a, b, normal)
			a.receive(1, a.mr.Sub(landing, 8))
			b.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, b.mr.Sub(0, 8)) })
			r.succeed(b.sendCQ, 1)
			r.succeed(a.recvCQ, 1)
			r.nothing(a.recvCQ, "the other receives were dropped")
		}),
	},
	{
		Name: "states.full", Proves: "a full queue refuses what it has no room for, and takes more when it has room", Features: all,
		Run: on(func(r *rig) {
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{})
			r.connect(a, b, normal)
			room := b.qp.Cap().RecvQueue
			r.want(room >= depth, "room for %d receives instead of %d", room, depth)
			const most = 1 << 12
			if room < most {
				batch := must(ibverbs.NewRecvBatch(most, 0))(r.T)
				for i := range most {
					ok(r.T, batch.Recv(uint64(i+1)))
				}
				n, err := b.qp.PostRecv(batch)
				r.Case("receives into a full queue", refusal("ENOMEM"), errno(err))
				r.want(n >= depth, "only %d of %d receives were posted", n, depth)
				ok(r.T, b.qp.ToReset())
				ok(r.T, a.qp.ToReset())
				r.connect(a, b, normal)
			}
			sends := must(ibverbs.NewSendBatch(most, 1))(r.T)
			for i := range most {
				ok(r.T, sends.Send(uint64(i+1), 0)) // waits for a receive
			}
			n, err := a.qp.PostSend(sends)
			r.Case("sends into a full queue", refusal("ENOMEM"), errno(err))
			r.want(n >= depth && n < most, "%d of %d sends were posted into a queue of %d", n, most, depth)
			var failed *ibverbs.PostError
			r.want(errors.As(err, &failed) && failed.Index == n, "the error names another request than %d: %v", n, err)
		}),
		Matters: "Programs that post more than their queues hold are told otherwise.",
	},
	{
		Name: "states.drained", Proves: "a drained queue pair sends again after it is resumed", Features: []check.Feature{check.Changes}, Matters: "Only programs that call ToSQD notice.",
		Run: on(func(r *rig) {
			a, b := r.pair()
			if err := a.qp.ToSQD(false); err != nil {
				if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, syscall.EINVAL) {
					r.Lacks("the state SQD")
				}
				ok(r.T, err)
			}
			r.until("drained", func() bool {
				got, err := a.qp.Query()
				if errors.Is(err, errors.ErrUnsupported) {
					return true // there is nothing to drain yet
				}
				ok(r.T, err)
				return !got.Draining
			})
			b.receive(1, b.mr.Sub(0, 8))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
			var wcs [1]ibverbs.WC
			for range 10 {
				n := must(a.sendCQ.Spin(wcs[:], ibverbs.MaxSpin))(r.T)
				r.want(n == 0, "a queue pair that is stopped sends")
			}
			ok(r.T, a.qp.Resume())
			b.receive(2, b.mr.Sub(0, 8))
			a.post(func(s *ibverbs.SendBatch) error { return s.Send(2, ibverbs.SendSignaled, a.mr.Sub(0, 8)) }) // Soft-RoCE begins with it
			r.succeed(a.sendCQ, 2)
			r.succeed(b.recvCQ, 2)
		}),
	},
	{
		Name: "states.transitions", Proves: "the device refuses transitions that do not exist, and stays as it was", Features: []check.Feature{check.Diagnosis},
		Run: on(func(r *rig) {
			a := r.end(ibverbs.QPConfig{})
			for _, to := range []struct {
				name  string
				state ibverbs.QPState
			}{{"ready to send", ibverbs.QPStateRTS}, {"ready to receive", ibverbs.QPStateRTR}, {"drained", ibverbs.QPStateSQD}} {
				err := a.qp.Modify(ibverbs.QPAttr{State: to.state}, ibverbs.QPAttrState)
				r.Case("from reset to "+to.name, refusal("EINVAL"), errno(err))
				r.inState(a, ibverbs.QPStateReset)
			}
		}),
	},
}

func (r *rig) inState(e *end, want ibverbs.QPState) {
	r.want(r.is(e, want), "the queue pair is not in the state %v", want)
}

// is reports whether an end's queue pair is in a state. It is if the device has
// no queries of queue pairs.
func (r *rig) is(e *end, want ibverbs.QPState) bool {
	got, err := e.qp.State()
	if errors.Is(err, errors.ErrUnsupported) {
		return true
	}
	ok(r.T, err)
	return got == want
}

// flushed adds a case for completions that must be flushed, with IDs from first
// on.
func (r *rig) flushed(what string, wcs []ibverbs.WC, first uint64) {
	yours := statusName(ibverbs.WCFlushed)
	for i := range wcs {
		if s := wcs[i].Status(); s != ibverbs.WCFlushed {
			yours = statusName(s)
		}
		r.want(wcs[i].ID() == first+uint64(i), "%s: completion %d has the ID %d instead of %d", what, i+1, wcs[i].ID(), first+uint64(i))
	}
	r.Case(what, spec(ibverbs.WCFlushed), yours)
}

// postOne posts a send with the ID 1, and returns the error.
func (e *end) postOne() error {
	s := must(ibverbs.NewSendBatch(1, 1))(e.T)
	ok(e.T, s.Send(1, ibverbs.SendSignaled, e.mr.Sub(0, 8)))
	_, err := e.qp.PostSend(s)
	return err
}
