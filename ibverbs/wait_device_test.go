package ibverbs_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// waiter runs Wait in a goroutine.
func waiter(ctx context.Context, cq *ibverbs.CQ) <-chan error {
	result := make(chan error, 1)
	go func() { result <- cq.Wait(ctx) }()
	return result
}

// ended returns the result of a waiter that must have one soon.
func ended(t testing.TB, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	case <-time.After(patience):
		require.FailNow(t, "Wait did not end")
		return nil
	}
}

// untilWaiting returns when a goroutine waits for the queue.
func untilWaiting(t testing.TB, cq *ibverbs.CQ) {
	t.Helper()
	for end := time.Now().Add(patience); !cq.Waiting(); runtime.Gosched() {
		require.True(t, time.Now().Before(end), "nobody waits")
	}
}

// ping makes a send one empty message to b, which has a receive for it.
func ping(t testing.TB, a, b *end, id uint64) {
	t.Helper()
	b.postRecv(t, id)
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(id, ibverbs.SendSignaled) })
}

func TestWait(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel()) // four queues share the channel
	for id := range uint64(20) {
		waits := []<-chan error{waiter(limit(t), b.recvCQ), waiter(limit(t), a.sendCQ)}
		ping(t, a, b, id)
		for i, cq := range []*ibverbs.CQ{b.recvCQ, a.sendCQ} {
			require.NoError(t, ended(t, waits[i]))
			wcs := make([]ibverbs.WC, 2)
			require.Equal(t, 1, must(cq.Poll(wcs))(t), "Wait leaves it to Poll")
			require.NoError(t, wcs[0].Err())
			require.Equal(t, id, wcs[0].ID())
		}
	}
}

// A completion that is there already ends a wait at once, even with a context
// that is done.
func TestWaitFindsWhatIsThere(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	ping(t, a, b, 1)
	require.NoError(t, b.recvCQ.Wait(limit(t)))
	require.NoError(t, b.recvCQ.Wait(limit(t)), "until Poll takes it")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, b.recvCQ.Wait(done))
	collectOK(t, b.recvCQ, 1)
	require.ErrorIs(t, b.recvCQ.Wait(done), context.Canceled)
}

// Poll gives what a wait has found before anything later, and all that fits.
func TestPollAfterWaitKeepsOrder(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	const n = 40 // more than Wait takes
	b.recv.Reset()
	a.send.Reset()
	for id := range uint64(n) {
		require.NoError(t, b.recv.Recv(id))
		require.NoError(t, a.send.Send(id, ibverbs.SendSignaled))
	}
	must(b.qp.PostRecv(b.recv))(t)
	must(a.qp.PostSend(a.send))(t)
	require.NoError(t, b.recvCQ.Wait(limit(t)))
	next := uint64(0)
	wcs := make([]ibverbs.WC, 7)
	for next < n {
		require.NoError(t, b.recvCQ.Wait(limit(t)))
		for _, wc := range wcs[:must(b.recvCQ.Poll(wcs))(t)] {
			require.Equal(t, next, wc.ID())
			next++
		}
	}

	collectOK(t, a.sendCQ, n)
	ping(t, a, b, 100)
	collectOK(t, a.sendCQ, 1) // so that the receive is complete, too
	require.NoError(t, b.recvCQ.Wait(limit(t)))
	ping(t, a, b, 101)
	collectOK(t, a.sendCQ, 1)
	require.Equal(t, 2, must(b.recvCQ.Poll(wcs))(t), "what the wait found and what came later")
	require.EqualValues(t, 100, wcs[0].ID())
	require.EqualValues(t, 101, wcs[1].ID())
}

func TestWaitEnds(t *testing.T) {
	r := open(t)
	cq := r.cq(1, r.channel())
	cause := errors.New("my cause")
	for name, tt := range map[string]struct {
		end  func(ctx context.Context) (context.Context, context.CancelFunc)
		want []error
	}{
		"cancel": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(5*time.Millisecond, cancel)
				return ctx, cancel
			},
			[]error{context.Canceled},
		},
		"cause": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				time.AfterFunc(5*time.Millisecond, func() { cancel(cause) })
				return ctx, func() { cancel(nil) }
			},
			[]error{context.Canceled, cause},
		},
		"deadline": {
			func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 5*time.Millisecond)
			},
			[]error{context.DeadlineExceeded, os.ErrDeadlineExceeded},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 { // and the queue can be waited for again
				ctx, cancel := tt.end(t.Context())
				defer cancel()
				// The second has no turn when it ends.
				for _, w := range []<-chan error{waiter(ctx, cq), waiter(ctx, cq)} {
					err := ended(t, w)
					for _, want := range tt.want {
						require.ErrorIs(t, err, want)
					}
				}
			}
		})
	}
}

func TestWaitRefused(t *testing.T) {
	r := open(t)
	polled := r.cq(1, nil)
	err := polled.Wait(t.Context())
	require.ErrorContains(t, err, "made without a completion channel")
	require.ErrorContains(t, err, "CQ ")

	cq := r.cq(1, r.channel())
	var none context.Context
	require.EqualError(t, cq.Wait(none), "Wait: ctx is nil")

	for _, cq := range []*ibverbs.CQ{cq, polled} {
		require.NoError(t, cq.Close())
		require.ErrorIs(t, cq.Wait(t.Context()), os.ErrClosed)
		_, err = cq.Poll(make([]ibverbs.WC, 1))
		require.ErrorIs(t, err, os.ErrClosed)
	}
}

// Close wakes whoever waits for the queue, and nobody else.
func TestCloseWakesWaiters(t *testing.T) {
	r := open(t)
	ch := r.channel()
	a, b := r.pair(ch)
	other := waiter(limit(t), b.recvCQ)
	for round := range 20 {
		cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: ch}))(t)
		waits := make([]<-chan error, 8)
		for i := range waits {
			waits[i] = waiter(limit(t), cq)
		}
		for range round { // Close finds them at different places
			runtime.Gosched()
		}
		require.NoError(t, cq.Close())
		for _, w := range waits {
			require.ErrorIs(t, ended(t, w), os.ErrClosed)
		}
	}
	select {
	case err := <-other:
		require.FailNow(t, "the other queue's wait ended", "%v", err)
	default:
	}
	ping(t, a, b, 1)
	require.NoError(t, ended(t, other))
	collectOK(t, b.recvCQ, 1)
	collectOK(t, a.sendCQ, 1)
}

// A Close that fails, because a queue pair uses the queue, disturbs nobody.
func TestBusyCloseDoesNotWake(t *testing.T) {
	r := open(t)
	ch := r.channel()
	a, b := r.pair(ch)
	w := waiter(limit(t), b.recvCQ)
	var busy *ibverbs.BusyError
	for range 10 {
		require.ErrorAs(t, b.recvCQ.Close(), &busy)
		require.ErrorAs(t, ch.Close(), &busy)
	}
	ping(t, a, b, 1)
	require.NoError(t, ended(t, w))
	collectOK(t, b.recvCQ, 1)
	collectOK(t, a.sendCQ, 1)
}

// Several goroutines wait for one queue; each completion goes to one of them.
func TestSeveralWaitersOnOneQueue(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	const goroutines, messages = 8, 400
	ctx, cancel := context.WithCancel(limit(t))
	defer cancel()
	ids := make(chan uint64)
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			wcs := make([]ibverbs.WC, 3)
			for {
				if err := b.recvCQ.Wait(ctx); err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					return
				}
				n, err := b.recvCQ.Poll(wcs)
				if err != nil {
					t.Error(err)
					return
				}
				for _, wc := range wcs[:n] {
					ids <- wc.ID()
				}
			}
		})
	}
	seen := map[uint64]bool{}
	for id := range uint64(messages) {
		ping(t, a, b, id)
		if id >= depth/2 { // no more than that on their way
			seen[<-ids] = true
		}
		if id%16 == 15 {
			collectOK(t, a.sendCQ, 16)
		}
	}
	for range depth / 2 {
		seen[<-ids] = true
	}
	require.Len(t, seen, messages, "each once")
	cancel()
	all.Wait()
}
