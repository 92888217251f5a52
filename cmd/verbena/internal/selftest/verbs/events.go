// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

const eventMatters = "A program that waits for the event learns of it later, or only by completions."

var events = []check.Check{
	{
		Name: "events.srq", Proves: "a shared receive queue tells when it runs low", Features: []check.Feature{check.Shared}, Matters: eventMatters,
		Run: on(func(r *rig) {
			srq := r.srq(depth)
			a, b := r.srqPair(srq)
			for i := range 4 {
				r.shared(srq, uint64(i+1), b.mr.Sub(0, 8))
			}
			ok(r.T, srq.SetLimit(3))
			attr := must(srq.Query())(r.T)
			r.want(attr.Limit == 3, "the limit is %d instead of 3", attr.Limit)
			for range 2 {
				ok(r.T, a.trySend(0))
				r.completions(a.sendCQ, 1)
				r.completions(b.recvCQ, 1)
			}
			limited, cancel := context.WithTimeout(r.Context(), r.Patience())
			defer cancel()
			ev, err := r.eventOf(limited, ibverbs.EventSRQLimitReached)
			if err != nil {
				r.Differf("no event: %v", err)
			}
			r.want(ev.SRQ() == srq, "the event is of another queue")
		}),
	},
	{
		Name: "events.last", Proves: "a queue pair with a shared receive queue tells when it takes no more receives", Features: []check.Feature{check.Shared},
		Matters: "Verbena waits for the event for a bounded time, and closes then.",
		Run: on(func(r *rig) {
			srq := r.srq(depth)
			_, b := r.srqPair(srq)
			ok(r.T, b.qp.SetError())
			select {
			case <-b.qp.LastWQEReached():
				return
			case <-time.After(min(r.Patience(), time.Second)):
			}
			limited, cancel := context.WithTimeout(r.Context(), min(r.Patience(), 2*time.Second))
			defer cancel()
			_, err := r.eventOf(limited, ibverbs.EventLastWQEReached)
			v := refusal("reported")
			v.SoftRoCE = []string{"reported", "not reported"} // since Linux 6.12
			r.Case("last receive taken", v, map[bool]string{true: "reported", false: "not reported"}[err == nil])
		}),
	},
	{
		Name: "events.access", Proves: "a peer's wrong key is reported as an event", Features: []check.Feature{check.Diagnosis}, Matters: eventMatters,
		Run: on(func(r *rig) {
			a, b := r.pair()
			a.post(func(s *ibverbs.SendBatch) error {
				return s.Write(1, cut(withKey(b.mr.Remote(), b.mr.RKey()^0x5A)), 0, a.mr.Sub(0, 8))
			})
			r.completions(a.sendCQ, 1)
			limited, cancel := context.WithTimeout(r.Context(), min(r.Patience(), 2*time.Second))
			defer cancel()
			ev, err := r.eventOf(limited, ibverbs.EventQPAccessError)
			v := refusal("reported")
			v.SoftRoCE = []string{"reported", "not reported"} // since Linux 7.2
			r.Case("event of a wrong remote key", v, map[bool]string{true: "reported", false: "not reported"}[err == nil])
			r.want(err != nil || ev.QP() == b.qp, "the event is of another queue pair")
		}),
	},
	{
		Name: "events.drained", Proves: "a queue pair tells when it is drained", Features: []check.Feature{check.Changes}, Matters: eventMatters,
		Run: on(func(r *rig) {
			a, _ := r.pair()
			if err := a.qp.ToSQD(true); err != nil {
				r.Lacks("the state SQD with an event")
			}
			limited, cancel := context.WithTimeout(r.Context(), r.Patience())
			defer cancel()
			ev, err := r.eventOf(limited, ibverbs.EventSQDrained)
			if err != nil {
				r.Differf("no event: %v", err)
			}
			r.want(ev.QP() == a.qp, "the event is of another queue pair")
		}),
	},
}

// eventOf waits for an event of a type. Other events may come before.
func (r *rig) eventOf(ctx context.Context, want ibverbs.EventType) (ibverbs.Event, error) {
	for {
		ev, err := r.dev.NextEvent(ctx)
		if err != nil {
			if errors.Is(err, context.DeadlineExceeded) {
				err = errors.New("none came in time")
			}
			return ev, err
		}
		if ev.Type == want {
			return ev, nil
		}
	}
}
