// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// queues are the completion queues.
var queues = []check.Check{
	{
		Name: "queues.wait", Proves: "a completion wakes the goroutine that waits for it, every time", Features: []check.Feature{check.Waiting, check.Connections, check.Sockets, check.Transfers},
		Run: on(func(r *rig) {
			ch := keep(r.dev.CreateCompChannel())(r.T)
			cq := keep(r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: ch, Spin: -1}))(r.T)
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{RecvCQ: cq})
			r.connect(a, b, normal)
			for i := range 100 {
				b.receive(1, b.mr.Sub(0, 8))
				if i%2 == 0 {
					ok(r.T, r.awaitSend(cq, a, 0))
				} else {
					ok(r.T, a.trySend(0))
					_, err := r.await(cq)
					ok(r.T, err)
				}
				r.completions(a.sendCQ, 1)
			}
		}),
	},
	{
		Name: "queues.solicited", Proves: "a queue for solicited events is woken by solicited messages", Features: []check.Feature{check.Waiting},
		Run: on(func(r *rig) {
			ch := keep(r.dev.CreateCompChannel())(r.T)
			cq := keep(r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: ch, Spin: -1, SolicitedOnly: true}))(r.T)
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{RecvCQ: cq})
			r.connect(a, b, normal)
			for range 10 {
				b.receive(1, b.mr.Sub(0, 8))
				err := r.awaitSend(cq, a, ibverbs.SendSolicited)
				if errors.Is(err, errors.ErrUnsupported) {
					r.Lacks("events of solicited messages only")
				}
				ok(r.T, err)
				r.completions(a.sendCQ, 1)
			}
		}),
	},
	{
		Name: "queues.resize", Proves: "a completion queue can be resized, and keeps what is in it", Features: []check.Feature{check.Changes},
		Run: on(func(r *rig) {
			const most = 128 // entries
			r.need(r.attr.MaxCQE >= most, "completion queues of 128 entries")
			r.need(r.attr.MaxQPWR >= most+depth, "send queues of 144 requests")
			cq := r.cq(depth)
			a, b := r.end(ibverbs.QPConfig{SendCQ: cq, SendQueue: most + depth}), r.end(ibverbs.QPConfig{})
			r.connect(a, b, normal)
			writes := func(n int) {
				a.post(func(s *ibverbs.SendBatch) (err error) {
					for i := range n {
						if e := s.Write(uint64(i+1), b.mr.Remote().Sub(0, 8), ibverbs.SendSignaled, a.mr.Sub(0, 8)); err == nil {
							err = e
						}
					}
					return err
				})
			}
			writes(5)
			err := cq.Resize(most)
			if errors.Is(err, errors.ErrUnsupported) {
				r.Lacks("resizing of completion queues")
			}
			ok(r.T, err)
			r.want(cq.Cap() >= most, "the queue has %d entries after a resize to %d", cq.Cap(), most)
			r.succeed(cq, 5)
			for range most / depth {
				writes(depth)
			}
			for range most / depth {
				r.succeed(cq, depth)
			}
		}),
		Do: "Create completion queues as large as they must ever be.",
	},
	{
		Name: "queues.overrun", Proves: "a completion queue that overruns says so", Features: []check.Feature{check.Diagnosis}, Matters: "A program whose queue is too small waits instead of failing.",
		Run: on(func(r *rig) {
			cq := r.cq(1)
			room := cq.Cap()
			n := room + 8
			r.need(n <= r.attr.MaxQPWR && n <= 1<<12, "send queues that are longer than its shortest completion queue")
			a, b := r.end(ibverbs.QPConfig{SendCQ: cq, SendQueue: n}), r.end(ibverbs.QPConfig{})
			r.connect(a, b, once)
			s := must(ibverbs.NewSendBatch(n, 1))(r.T)
			for i := range n {
				ok(r.T, s.Write(uint64(i+1), b.mr.Remote().Sub(0, 8), ibverbs.SendSignaled, a.mr.Sub(0, 8)))
			}
			must(a.qp.PostSend(s))(r.T)
			limited, cancel := context.WithTimeout(r.Context(), r.Patience())
			defer cancel()
			ev, err := r.eventOf(limited, ibverbs.EventCQError)
			if err != nil {
				r.Differf("no event reports the overrun: %v", err)
			}
			r.want(ev.CQ() == cq, "the event is of another queue")
			wcs := make([]ibverbs.WC, n)
			for {
				k, err := cq.Poll(wcs)
				if err != nil {
					r.want(errors.Is(err, ibverbs.ErrCQOverrun), "the error of the queue: %v", err)
					break
				}
				r.want(k > 0, "the queue does not tell of its overrun")
			}
		}),
	},
	{
		Name: "queues.fields", Proves: "completions of an extended queue have their fields and times", Features: []check.Feature{check.Times},
		Run: on(func(r *rig) {
			fields := ibverbs.WCWithByteLen | ibverbs.WCWithQPNum
			timed := r.attr.CompletionTimestampMask != 0
			if timed {
				fields |= ibverbs.WCWithTimestamp
			}
			cq := offered(r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Fields: fields}))(r.T, "extended completion queues")
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{RecvCQ: cq})
			r.connect(a, b, normal)
			var last uint64
			for i := range 5 {
				b.receive(1, b.mr.Sub(0, 64))
				a.post(func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8+i)) })
				r.succeed(a.sendCQ, 1)
				wc := r.succeed(cq, 1)[0]
				r.want(wc.ByteLen() == 8+i, "%d of %d bytes", wc.ByteLen(), 8+i)
				r.want(wc.QPNum() == b.qp.Num(), "queue pair %d instead of %d", wc.QPNum(), b.qp.Num())
				if timed {
					r.want(wc.Timestamp() != last, "two completions have the same time")
					last = wc.Timestamp()
				}
			}
			if !timed {
				r.Notef("without times")
			}
		}),
	},
	{
		Name: "queues.clock", Proves: "the device's clock runs", Features: []check.Feature{check.Times},
		Run: on(func(r *rig) {
			first, err := r.dev.RawClock()
			if errors.Is(err, errors.ErrUnsupported) {
				r.Lacks("a clock")
			}
			ok(r.T, err)
			r.until("the clock runs", func() bool { return must(r.dev.RawClock())(r.T) != first })
		}),
	},
	{
		Name: "queues.moderation", Proves: "a queue that delays events wakes its goroutine in the end", Features: []check.Feature{check.Changes, check.Waiting},
		Run: on(func(r *rig) {
			ch := keep(r.dev.CreateCompChannel())(r.T)
			cq := keep(r.dev.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: ch, Spin: -1}))(r.T)
			err := cq.Moderate(8, 2*time.Millisecond)
			if errors.Is(err, errors.ErrUnsupported) {
				r.Lacks("moderation of events")
			}
			ok(r.T, err)
			a, b := r.end(ibverbs.QPConfig{}), r.end(ibverbs.QPConfig{RecvCQ: cq})
			r.connect(a, b, normal)
			for range 5 {
				b.receive(1, b.mr.Sub(0, 8))
				ok(r.T, r.awaitSend(cq, a, 0)) // a message that has come before the wait needs no event
				r.completions(a.sendCQ, 1)
			}
		}),
	},
}

// await waits for a completion of a queue with a channel.
func (r *rig) await(cq *ibverbs.CQ) (ibverbs.WC, error) {
	limited, cancel := context.WithTimeout(r.Context(), r.Patience())
	defer cancel()
	return cq.WaitOne(limited)
}

// awaitSend waits for a completion of a queue, of a message that it sends when
// the goroutine is parked.
func (r *rig) awaitSend(cq *ibverbs.CQ, from *end, flags ibverbs.SendFlags) error {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		time.Sleep(time.Millisecond)
		_ = from.trySend(flags)
	}()
	_, err := r.await(cq)
	<-sent
	return err
}

// trySend sends a message of 8 bytes. It may be called by any goroutine.
func (e *end) trySend(flags ibverbs.SendFlags) error { return e.trySendN(8, flags) }

func (e *end) trySendN(n int, flags ...ibverbs.SendFlags) error {
	all := ibverbs.SendSignaled
	for _, f := range flags {
		all |= f
	}
	s, err := ibverbs.NewSendBatch(1, 1)
	if err != nil {
		return err
	}
	if err := s.Send(1, all, e.mr.Sub(0, n)); err != nil {
		return err
	}
	_, err = e.qp.PostSend(s)
	return err
}
