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

// waited is what a Wait returned.
type waited struct {
	wcs []ibverbs.WC
	err error
}

// waiter runs Wait in a goroutine.
func waiter(ctx context.Context, cq *ibverbs.CQ) <-chan waited {
	result := make(chan waited, 1)
	go func() {
		wcs := make([]ibverbs.WC, 4)
		n, err := cq.Wait(ctx, wcs)
		result <- waited{wcs[:n], err}
	}()
	return result
}

// ended returns the result of a waiter that must have one soon.
func ended[T any](t testing.TB, result <-chan T) T {
	t.Helper()
	select {
	case got := <-result:
		return got
	case <-time.After(patience):
		require.FailNow(t, "the wait did not end")
		panic("not reached")
	}
}

// requireOne checks that a wait found one completion, successful, with the ID.
func requireOne(t testing.TB, got waited, id uint64) {
	t.Helper()
	require.NoError(t, got.err)
	require.Len(t, got.wcs, 1)
	require.NoError(t, got.wcs[0].Err())
	require.Equal(t, id, got.wcs[0].ID())
}

// waitErr is Wait for its error.
func waitErr(ctx context.Context, cq *ibverbs.CQ) error {
	_, err := cq.Wait(ctx, make([]ibverbs.WC, 1))
	return err
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
		waits := []<-chan waited{waiter(limit(t), b.recvCQ), waiter(limit(t), a.sendCQ)}
		ping(t, a, b, id)
		for _, w := range waits {
			requireOne(t, ended(t, w), id)
		}
	}
}

// A completion that is there already ends a wait at once, even with a context
// that is done.
func TestWaitFindsWhatIsThere(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	ping(t, a, b, 1)
	collectOK(t, a.sendCQ, 1) // so that the receive is complete, too
	done, cancel := context.WithCancel(t.Context())
	cancel()
	requireOne(t, ended(t, waiter(done, b.recvCQ)), 1)
	require.ErrorIs(t, waitErr(done, b.recvCQ), context.Canceled)
}

// Waits and polls give completions in order, as many as there is room for.
func TestWaitAndPollKeepOrder(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	const n = 40
	b.recv.Reset()
	a.send.Reset()
	for id := range uint64(n) {
		require.NoError(t, b.recv.Recv(id))
		require.NoError(t, a.send.Send(id, ibverbs.SendSignaled))
	}
	must(b.qp.PostRecv(b.recv))(t)
	must(a.qp.PostSend(a.send))(t)
	collectOK(t, a.sendCQ, n)
	next := uint64(0)
	wcs := make([]ibverbs.WC, 7)
	for next < n {
		got := must(b.recvCQ.Wait(limit(t), wcs))(t)
		require.Equal(t, min(len(wcs), n-int(next)), got)
		for _, wc := range wcs[:got] {
			require.Equal(t, next, wc.ID())
			next++
		}
	}
	require.Zero(t, must(b.recvCQ.Poll(wcs))(t))
}

func TestWaitForOne(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	for id := range uint64(3) {
		ping(t, a, b, id)
		wc := must(b.recvCQ.WaitOne(limit(t)))(t)
		require.Equal(t, id, wc.ID())
	}
	collectOK(t, a.sendCQ, 3)

	// Some that come while the loop waits, then flushed ones, then the end.
	for id := range uint64(3) {
		b.postRecv(t, id)
	}
	ctx, cancel := context.WithCancel(limit(t))
	defer cancel()
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(9, ibverbs.SendSignaled) })
	var ids []uint64
	var last error
	for wc, err := range b.recvCQ.Completions(ctx) {
		if last = err; errors.Is(err, context.Canceled) {
			break
		}
		ids = append(ids, wc.ID())
		switch wc.ID() {
		case 0:
			require.NoError(t, err)
			require.NoError(t, b.qp.SetError())
		case 2:
			require.ErrorIs(t, err, ibverbs.WCFlushed)
			cancel()
		default:
			require.ErrorIs(t, err, ibverbs.WCFlushed)
		}
	}
	require.Equal(t, []uint64{0, 1, 2}, ids)
	require.ErrorIs(t, last, context.Canceled)
	collectOK(t, a.sendCQ, 1)
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
				for _, w := range []<-chan waited{waiter(ctx, cq), waiter(ctx, cq)} {
					err := ended(t, w).err
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
	err := waitErr(t.Context(), polled)
	require.ErrorContains(t, err, "made without CQConfig.Channel")
	require.ErrorContains(t, err, "CQ ")

	cq := r.cq(1, r.channel())
	var none context.Context
	require.EqualError(t, waitErr(none, cq), "CQ.Wait: ctx is nil")
	_, err = cq.Wait(t.Context(), nil)
	require.ErrorContains(t, err, "): no room for completions")

	for _, cq := range []*ibverbs.CQ{cq, polled} {
		require.NoError(t, cq.Close())
		require.ErrorIs(t, waitErr(t.Context(), cq), os.ErrClosed)
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
		waits := make([]<-chan waited, 8)
		for i := range waits {
			waits[i] = waiter(limit(t), cq)
		}
		for range round { // Close finds them at different places
			runtime.Gosched()
		}
		require.NoError(t, cq.Close())
		for _, w := range waits {
			require.ErrorIs(t, ended(t, w).err, os.ErrClosed)
		}
	}
	select {
	case got := <-other:
		require.FailNow(t, "the other queue's wait ended", "%v", got)
	default:
	}
	ping(t, a, b, 1)
	requireOne(t, ended(t, other), 1)
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
	requireOne(t, ended(t, w), 1)
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
				n, err := b.recvCQ.Wait(ctx, wcs)
				if err != nil {
					if !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
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
