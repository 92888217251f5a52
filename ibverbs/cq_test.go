// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// withCQ makes an end whose two directions complete into one queue, connected
// with itself.
func (r *rig) withCQ(cq *ibverbs.CQ, requests int) *end { return r.withCQs(cq, cq, requests) }

func (r *rig) withCQs(send, recv *ibverbs.CQ, requests int) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: send, recvCQ: recv, mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{SendCQ: send, RecvCQ: recv, SendQueue: requests, RecvQueue: requests})
	e.send = must(ibverbs.NewSendBatch(requests, 1))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(requests, 1))(r.t)
	r.connect(e, linkTo(e.qp))
	return e
}

// writes posts n signaled writes with the IDs from first on.
func (e *end) writes(t testing.TB, first uint64, n int) {
	t.Helper()
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		for i := range uint64(n) {
			if err := s.Write(first+i, e.mr.Remote(), ibverbs.SendSignaled, e.mr.Sub(0, 8)); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestExtendedCQ(t *testing.T) {
	r := open(t)
	r.have(testdevice.Immediate)
	ch := r.channel()
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	r.cleanup(cq)
	e := r.withCQ(cq, depth)
	for name, poll := range map[string]func(wcs []ibverbs.WC) (int, error){
		"poll":  cq.Poll,
		"spin":  func(wcs []ibverbs.WC) (int, error) { return cq.Spin(wcs, ibverbs.MaxSpin) },
		"wait":  func(wcs []ibverbs.WC) (int, error) { return cq.Wait(limit(t), wcs) },
		"sleep": func(wcs []ibverbs.WC) (int, error) { return cq.Sleep(wcs, ibverbs.MaxSpin) },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 20
			e.recv.Reset()
			for i := range uint64(n) {
				require.NoError(t, e.recv.Recv(100+i, e.mr.Sub(100, 100)))
			}
			must(e.qp.PostRecv(e.recv))(t)
			e.postSend(t, func(s *ibverbs.SendBatch) error {
				for i := range uint64(n) {
					if err := s.SendImm(i, uint32(i), ibverbs.SendSignaled, e.mr.Sub(0, 10)); err != nil {
						return err
					}
				}
				return nil
			})
			var sent, received []ibverbs.WC
			wcs := make([]ibverbs.WC, 7)
			for end := time.Now().Add(patience); len(sent)+len(received) < 2*n; {
				require.True(t, time.Now().Before(end), "%d and %d came", len(sent), len(received))
				for _, wc := range wcs[:must(poll(wcs))(t)] {
					require.NoError(t, wc.Err())
					require.Equal(t, e.qp.Num(), wc.QPNum())
					if wc.ID() >= 100 {
						received = append(received, wc)
					} else {
						sent = append(sent, wc)
					}
				}
			}
			for i := range n {
				require.EqualValues(t, i, sent[i].ID())
				require.Equal(t, ibverbs.WCSend, sent[i].Opcode())
				require.EqualValues(t, 100+i, received[i].ID())
				require.Equal(t, ibverbs.WCRecv, received[i].Opcode())
				require.Equal(t, 10, received[i].ByteLen())
				imm, ok := received[i].Imm()
				require.True(t, ok)
				require.EqualValues(t, i, imm)
			}
			require.Zero(t, must(cq.Poll(wcs))(t), "nothing twice")
		})
	}
	t.Run("exchange", func(t *testing.T) {
		e.recv.Reset()
		require.NoError(t, e.recv.Recv(100, e.mr.Sub(100, 100)))
		e.send.Reset()
		require.NoError(t, e.send.SendImm(1, 7, ibverbs.SendSignaled, e.mr.Sub(0, 10)))
		wcs := make([]ibverbs.WC, 2)
		n := must(e.qp.Exchange(e.recv, e.send, cq, wcs, 2, ibverbs.MaxSpin))(t)
		wcs = append(wcs[:n], collectOK(t, cq, 2-n)...)
		got := map[uint64]int{}
		for i := range wcs {
			got[wcs[i].ID()] = wcs[i].ByteLen()
		}
		require.Contains(t, got, uint64(1))
		require.Equal(t, 10, got[100])
	})
	t.Run("failure", func(t *testing.T) {
		r.device.HaveAttr(t, r.c, &r.attr, testdevice.LatePosts)
		require.NoError(t, e.qp.SetError())
		e.writes(t, 7, 1)
		wcs := make([]ibverbs.WC, 1)
		require.Equal(t, 1, must(cq.Wait(limit(t), wcs))(t))
		requireWC(t, wcs[0], 7, e.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
	})
}

// What a device does not have is refused: Soft-RoCE, all of these.
func TestExtendedCQUnsupported(t *testing.T) {
	r := open(t)
	for name, config := range map[string]ibverbs.CQConfig{
		"timestamp":      {Fields: ibverbs.WCWithTimestamp},
		"wall clock":     {Fields: ibverbs.WCStandard | ibverbs.WCWithWallclock},
		"flow tag":       {Fields: ibverbs.WCWithFlowTag},
		"VLAN":           {Fields: ibverbs.WCWithCVLAN},
		"tag matching":   {Fields: ibverbs.WCWithTMInfo},
		"ignore overrun": {IgnoreOverrun: true},
	} {
		config.CompQueue = 4
		cq, err := r.c.CreateCQ(config)
		if err == nil {
			t.Logf("%s: supported here", name)
			require.NoError(t, cq.Close())
			continue
		}
		require.ErrorIs(t, err, errors.ErrUnsupported, name)
		require.ErrorContains(t, err, "ibv_create_cq_ex (4 entries on ")
	}
	err := r.cq(4, nil).Moderate(8, 10*time.Microsecond)
	if err != nil {
		require.ErrorIs(t, err, errors.ErrUnsupported)
	}
	require.ErrorIs(t, r.cq(4, nil).Moderate(1<<16, 0), syscall.EINVAL)
	require.ErrorIs(t, r.cq(4, nil).Moderate(0, time.Second), syscall.EINVAL)
}

func TestSingleThreadedCQ(t *testing.T) {
	r := open(t)
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 8, SingleThreaded: true}))(t)
	r.cleanup(cq)
	e := r.withCQ(cq, 4)
	e.writes(t, 1, 3)
	collectOK(t, cq, 3)
}

// Resizing keeps the queue's completions and users.
func TestResize(t *testing.T) {
	r := open(t)
	cq := r.cq(32, nil)
	e := r.withCQs(cq, r.cq(1, nil), 128)
	const n = 20
	// The message waits for the read, and so for all completions before it.
	e.writes(t, 0, n-1)
	e.postRecv(t, 0)
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		return errors.Join(s.Read(n-1, e.mr.Remote(), ibverbs.SendSignaled, e.mr.Sub(8, 8)), s.Send(0, ibverbs.SendFence))
	})
	collectOK(t, e.recvCQ, 1)
	wcs := make([]ibverbs.WC, 128)
	next := uint64(0)
	take := func(n int) {
		t.Helper()
		for _, wc := range collectOK(t, cq, n) {
			require.Equal(t, next, wc.ID())
			next++
		}
	}
	take(5)

	before := cq.Cap()
	require.NoError(t, cq.Resize(100))
	require.GreaterOrEqual(t, cq.Cap(), 100)
	require.Greater(t, cq.Cap(), before)
	take(5)
	require.Error(t, cq.Resize(1), "there are more in it")
	require.GreaterOrEqual(t, cq.Cap(), 100)
	take(10)
	e.writes(t, n, 90) // more than fitted before
	take(90)
	require.NoError(t, cq.Resize(4))
	require.Less(t, cq.Cap(), 100)
	e.writes(t, n+90, 3)
	take(3)
	require.Zero(t, must(cq.Poll(wcs))(t))

	for _, entries := range []int{0, -1, math.MinInt} {
		require.ErrorIs(t, cq.Resize(entries), syscall.EINVAL)
	}
	require.Error(t, cq.Resize(1<<30), "more than any device has")
}

// An overrun loses completions. Those that are not lost come, and then an
// error, which wakes waiting goroutines, although the program reads no events.
func TestOverrun(t *testing.T) {
	r := open(t)
	r.have(testdevice.LatePosts)
	cq := r.cq(1, r.channel())
	kept := cq.Cap()
	other := r.cq(1, nil)
	e := r.withCQs(cq, other, kept+10)
	// The message waits for the read, and so for all completions before it: while
	// the queue is read, none of them may find room.
	e.writes(t, 0, kept+8)
	e.postRecv(t, 0)
	e.postSend(t, func(s *ibverbs.SendBatch) error {
		return errors.Join(s.Read(0, e.mr.Remote(), ibverbs.SendSignaled, e.mr.Sub(8, 8)), s.Send(0, ibverbs.SendFence))
	})
	collect(t, other, 1) // flushed, if the device fails queue pairs whose queue overruns

	for i, wc := range collectOK(t, cq, kept) {
		require.EqualValues(t, i, wc.ID())
	}
	require.ErrorIs(t, waitErr(limit(t), cq), ibverbs.ErrCQOverrun)
	_, err := cq.Poll(make([]ibverbs.WC, 1))
	require.ErrorIs(t, err, ibverbs.ErrCQOverrun)
	require.Same(t, cq, wantEvent(t, r.c, ibverbs.EventCQError).CQ())
}

func TestSpin(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	wcs := make([]ibverbs.WC, 4)
	require.Zero(t, must(b.recvCQ.Spin(wcs, time.Millisecond))(t))
	for id := range uint64(20) {
		b.postRecv(t, id, b.mr.Sub(0, 100))
		a.send.Reset()
		require.NoError(t, a.send.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, 100)))
		posted, n, err := a.qp.PostSendAndSpin(a.send, a.sendCQ, wcs, ibverbs.MaxSpin)
		require.NoError(t, err)
		require.Equal(t, 1, posted)
		if n == 0 { // a slow machine
			n = len(collect(t, a.sendCQ, 1))
		} else {
			require.NoError(t, wcs[0].Err())
			require.Equal(t, id, wcs[0].ID())
		}
		require.Equal(t, 1, n)
		collectOK(t, b.recvCQ, 1)
	}
}

// Every vector that the device has can be taken, and no other.
func TestVectors(t *testing.T) {
	r := open(t)
	vectors := r.c.CompVectors()
	require.Positive(t, vectors)
	for vector := range vectors {
		r.cleanup(must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: vector}))(t))
	}
	_, err := r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Vector: vectors})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "not from 0 to ")
}

// sleep is collect with Sleep.
func sleep(t testing.TB, cq *ibverbs.CQ, n int) []ibverbs.WC {
	t.Helper()
	var all []ibverbs.WC
	for end := time.Now().Add(patience); len(all) < n && time.Now().Before(end); {
		wcs := make([]ibverbs.WC, n-len(all))
		got := must(cq.Sleep(wcs, ibverbs.MaxSpin))(t)
		all = append(all, wcs[:got]...)
	}
	require.Len(t, all, n)
	return all
}

func TestSleep(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	wcs := make([]ibverbs.WC, 4)
	for _, budget := range []time.Duration{-1, 0, time.Millisecond, time.Hour} { // of which MaxSpin counts
		begin := time.Now()
		require.Zero(t, must(b.recvCQ.Sleep(wcs, budget))(t), budget)
		require.GreaterOrEqual(t, time.Since(begin), min(budget, ibverbs.MaxSpin))
	}
	for id := range uint64(50) {
		b.postRecv(t, id, b.mr.Sub(0, 100))
		a.postSend(t, func(batch *ibverbs.SendBatch) error {
			return batch.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, 100))
		})
		for _, wc := range append(sleep(t, b.recvCQ, 1), sleep(t, a.sendCQ, 1)...) {
			require.NoError(t, wc.Err())
			require.Equal(t, id, wc.ID())
		}
	}
}

// besideWait has one goroutine wait for one queue while another one sleeps for
// another one, or the same, each with room for one completion, and then posts
// what gives each one. Neither must miss its completion, whichever takes an
// event.
func besideWait(t *testing.T, waits, sleeps *ibverbs.CQ, post func()) {
	t.Helper()
	ctx := limit(t)
	ended := make(chan error, 2)
	go func() {
		_, err := waits.Wait(ctx, make([]ibverbs.WC, 1))
		ended <- err
	}()
	go func() {
		n, err := 0, error(nil)
		for n == 0 && err == nil && ctx.Err() == nil {
			n, err = sleeps.Sleep(make([]ibverbs.WC, 1), ibverbs.MaxSpin)
		}
		ended <- errors.Join(err, ctx.Err())
	}()
	untilWaiting(t, waits)
	post()
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
}

func TestSleepBesideWait(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	message := func(flags ibverbs.SendFlags) {
		b.postRecv(t, 1, b.mr.Sub(0, 100))
		a.postSend(t, func(batch *ibverbs.SendBatch) error { return batch.Send(2, flags, a.mr.Sub(0, 100)) })
	}
	for range 100 {
		besideWait(t, a.sendCQ, b.recvCQ, func() { message(ibverbs.SendSignaled) })
	}
	for range 100 {
		besideWait(t, b.recvCQ, b.recvCQ, func() { message(0); message(ibverbs.SendSignaled) })
		collectOK(t, a.sendCQ, 1)
	}
}

// A conversation, both ends of which sleep until the other one has spoken.
func TestExchangeAndSleep(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	const turns = depth / 2 // as the sender's completions are not polled
	speak := func(e *end, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch) error {
		wcs := make([]ibverbs.WC, 1)
		n, err := e.qp.ExchangeAndSleep(recv, send, e.recvCQ, wcs, 1, ibverbs.MaxSpin)
		for end := time.Now().Add(patience); n == 0 && err == nil && time.Now().Before(end); {
			n, err = e.recvCQ.Sleep(wcs, ibverbs.MaxSpin)
		}
		if n == 0 && err == nil {
			err = os.ErrDeadlineExceeded
		}
		return errors.Join(err, wcs[0].Err())
	}
	batches := func(e *end) (*ibverbs.RecvBatch, *ibverbs.SendBatch) {
		recv, send := must(ibverbs.NewRecvBatch(1, 1))(t), must(ibverbs.NewSendBatch(1, 1))(t)
		require.NoError(t, recv.Recv(1, e.mr.Sub(0, 64)))
		require.NoError(t, send.Send(2, 0, e.mr.Sub(64, 64)))
		return recv, send
	}
	recv, send := batches(b)
	_ = must(b.qp.PostRecv(recv))(t)
	finished := make(chan error, 1)
	go func() {
		err := speak(b, nil, nil) // the first message comes
		for range turns - 1 {
			err = errors.Join(err, speak(b, recv, send))
		}
		_, last := b.qp.PostSend(send)
		finished <- errors.Join(err, last)
	}()
	recv, send = batches(a)
	for range turns {
		require.NoError(t, speak(a, recv, send))
	}
	require.NoError(t, <-finished)
}

// Close waits for a sleep, and ends those to come.
func TestCloseWhileSleeping(t *testing.T) {
	r := open(t)
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: r.channel()}))(t)
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		wcs := make([]ibverbs.WC, 1)
		_, err := cq.Sleep(wcs, 0)
		close(started)
		for err == nil {
			_, err = cq.Sleep(wcs, ibverbs.MaxSpin)
		}
		ended <- err
	}()
	<-started
	require.NoError(t, cq.Close())
	select {
	case err := <-ended:
		require.ErrorIs(t, err, os.ErrClosed)
	case <-limit(t).Done():
		require.FailNow(t, "still sleeping")
	}
}

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
		require.True(t, time.Now().Before(end), "no goroutine waits")
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

// Close wakes the goroutines that wait for the queue, and no others.
func TestCloseWakesWaiters(t *testing.T) {
	r := open(t)
	ch := r.channel()
	a, b := r.pair(ch)
	other := waiter(limit(t), b.recvCQ)
	for round := range 20 {
		cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch}))(t)
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

// Wake ends one Wait, which is in progress or comes, and loses no completion.
func TestWake(t *testing.T) {
	r := open(t)
	cq := r.cq(depth, r.channel())
	e := r.withCQ(cq, depth)
	wcs := make([]ibverbs.WC, depth)
	wait := func() (int, error) { return cq.Wait(limit(t), wcs) }

	cq.Wake()
	cq.Wake()
	n, err := wait()
	require.NoError(t, err)
	require.Zero(t, n, "before it")

	cq.Wake()
	e.writes(t, 1, 1)
	require.Len(t, collect(t, cq, 1), 1, "completions go first")

	for range 20 { // in it, at any moment
		waited := make(chan error, 1)
		go func() {
			n, err := wait()
			if n != 0 {
				err = errors.New("there is nothing")
			}
			waited <- err
		}()
		cq.Wake()
		require.NoError(t, <-waited)
	}
	var none *ibverbs.CQ
	none.Wake()
	without := r.cq(depth, nil)
	without.Wake() // has no effect, as no goroutine can wait
	require.NoError(t, without.Close())
	without.Wake()
}

// A wait that naps finds what comes, and ends as one that parks does.
func TestWaitNaps(t *testing.T) {
	r := open(t)
	ch := r.channel()
	cq := r.cq(depth, ch)
	e := r.withCQ(cq, depth)
	t.Cleanup(ibverbs.LetNap())
	wcs := make([]ibverbs.WC, depth)
	for _, watched := range []bool{false, true} {
		for range 50 {
			cq.WantNaps()
			if !watched {
				ch.Unwatch()
			}
			w := waiter(limit(t), cq)
			untilWaiting(t, cq)
			e.writes(t, 1, 1)
			requireOne(t, ended(t, w), 1)
		}
		cq.WantNaps()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := cq.Wait(ctx, wcs) // naps, parks
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, !cq.Wakes(), ch.Watched())
		_, err = cq.Wait(ctx, wcs)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()

		cq.WantNaps()
		waited := make(chan error, 1)
		go func() {
			n, err := cq.Wait(limit(t), wcs)
			if n != 0 {
				err = errors.New("there is nothing")
			}
			waited <- err
		}()
		untilWaiting(t, cq)
		cq.Wake()
		require.NoError(t, <-waited)
	}

	require.Equal(t, !cq.Wakes(), cq.Naps(), "a device in this process needs the thread")
	other := r.cq(depth, ch)
	require.False(t, cq.Naps(), "another queue's waits may take its events")
	ch.Unwatch()
	require.Equal(t, !cq.Wakes(), ch.Watched(), "the other queue may have a wait")
	require.NoError(t, other.Close())

	alone := r.cq(depth, r.channel())
	alone.WantNaps()
	w := waiter(limit(t), alone)
	untilWaiting(t, alone)
	require.NoError(t, alone.Close())
	require.ErrorIs(t, ended(t, w).err, os.ErrClosed)
}

// The device in user space wakes a wait without an event, so that none is left
// in the channel. A program that has requested an event in C gets it all the
// same.
func TestWaitTakesNoEvents(t *testing.T) {
	r := open(t)
	cq := r.cq(depth, r.channel())
	e := r.withCQ(cq, depth)
	if !cq.Wakes() {
		t.Skip("the device wakes waits by events")
	}
	event := func() error {
		raw, _, err := libibverbs.GetCqEvent(cq.Raw().Channel)
		if err != nil {
			return err
		}
		return libibverbs.AckCqEvents(raw, 1)
	}
	for range 20 {
		w := waiter(limit(t), cq)
		untilWaiting(t, cq)
		e.writes(t, 1, 1)
		requireOne(t, ended(t, w), 1)
		require.ErrorIs(t, event(), syscall.EAGAIN)
	}
	// completes makes the queue get a completion, and waits until the device has
	// done what it does for one: it does so under the lock of these calls.
	completes := func() {
		e.writes(t, 2, 1)
		collectOK(t, cq, 1)
		require.NoError(t, must(r.c.AllocPD())(t).Close())
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		waits, requests bool
	}{
		"a wait":    {true, false},
		"a request": {false, true},
		"both":      {true, true},
		"neither":   {false, false},
	} {
		completes() // the queue may be armed, as a wait may have found the completion by itself
		cq.TakeWake()
		if tt.waits {
			require.ErrorIs(t, waitErr(done, cq), context.Canceled, name)
		}
		if tt.requests {
			require.NoError(t, libibverbs.ReqNotifyCq(cq.Raw(), 0), name)
		}
		completes()
		require.Equal(t, tt.waits, cq.TakeWake(), name)
		err := event()
		if tt.requests {
			require.NoError(t, err, name)
		} else {
			require.ErrorIs(t, err, syscall.EAGAIN, name)
		}
	}
}

// On the device in user space, waits take no file. The calls that need the
// channel's descriptor make it.
func TestChannelOpensLate(t *testing.T) {
	r := open(t)
	for name, needs := range map[string]func(ch *ibverbs.CompChannel, cq *ibverbs.CQ, e *end) int32{
		"CompChannel.Raw": func(ch *ibverbs.CompChannel, _ *ibverbs.CQ, _ *end) int32 { return ch.Raw().Fd },
		"CQ.Raw":          func(_ *ibverbs.CompChannel, cq *ibverbs.CQ, _ *end) int32 { return cq.Raw().Channel.Fd },
		"CQ.Sleep": func(_ *ibverbs.CompChannel, cq *ibverbs.CQ, e *end) int32 {
			e.writes(t, 2, 1)
			n, err := cq.Sleep(make([]ibverbs.WC, depth), ibverbs.MaxSpin)
			require.NoError(t, err)
			require.LessOrEqual(t, n, 1)
			if n == 0 {
				collectOK(t, cq, 1)
			}
			return cq.Raw().Channel.Fd
		},
	} {
		ch := r.channel()
		cq := r.cq(depth, ch)
		e := r.withCQ(cq, depth)
		w := waiter(limit(t), cq)
		untilWaiting(t, cq)
		e.writes(t, 1, 1)
		requireOne(t, ended(t, w), 1)
		require.NotEqual(t, cq.Wakes(), ch.HasDescriptor(), name)
		fd := needs(ch, cq, e)
		require.GreaterOrEqual(t, fd, int32(0), name)
		require.True(t, ch.HasDescriptor(), name)
		require.Equal(t, fd, ch.Raw().Fd, name)

		w = waiter(limit(t), cq)
		untilWaiting(t, cq)
		e.writes(t, 3, 1)
		requireOne(t, ended(t, w), 3)
	}
}

// Raw of a closed channel or queue makes no descriptor: C's channel may be in
// memory that is another channel's by then.
func TestRawAfterClose(t *testing.T) {
	r := open(t)
	var channels []*ibverbs.CompChannel
	var queues []*ibverbs.CQ
	for range 50 { // C's allocator keeps a few blocks back
		ch := must(r.c.CreateCompChannel())(t)
		channels, queues = append(channels, ch), append(queues, must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 1, Channel: ch}))(t))
	}
	had := channels[0].HasDescriptor()
	for i := range channels {
		require.NoError(t, queues[i].Close())
		require.NoError(t, channels[i].Close())
	}
	var others []*ibverbs.CompChannel
	for range channels {
		others = append(others, r.channel())
	}
	for i := range channels {
		_, _ = queues[i].Raw(), channels[i].Raw()
	}
	for _, other := range others {
		require.Equal(t, had, other.HasDescriptor())
	}
}

// A Close that fails, because a queue pair uses the queue, wakes no goroutine.
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

// untilNoThreads returns when so many goroutines are in Wait, and none of them
// holds a thread: one that is in a call of C or of the system does. The number
// of the process's threads says less, as Go keeps all threads that the
// goroutines needed at the same time before they were parked.
func untilNoThreads(t *testing.T, waiters int) {
	t.Helper()
	all := make([]byte, 4<<20)
	for end := time.Now().Add(patience); ; runtime.Gosched() {
		waiting, holding := 0, 0
		for stack := range bytes.SplitSeq(all[:runtime.Stack(all, true)], []byte("\n\n")) {
			if !bytes.Contains(stack, []byte("ibverbs.(*CQ).waitParked(")) {
				continue
			}
			waiting++
			state, _, _ := bytes.Cut(stack, []byte("\n"))
			if !bytes.Contains(state, []byte("[IO wait")) && !bytes.Contains(state, []byte("[select")) {
				holding++
			}
		}
		if waiting == waiters && holding == 0 {
			return
		}
		require.True(t, time.Now().Before(end), "%d goroutines wait, and %d of them hold a thread", waiting, holding)
	}
}

// Goroutines that wait for completion queues hold no threads, and each wait
// ends soon after its cancel and after its queue's Close.
func TestManyWaitersHoldNoThreads(t *testing.T) {
	const waiters = 200
	r := open(t)
	for name, channels := range map[string]int{"a channel each": waiters, "one channel": 1, "ten channels": 10} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			var chs []*ibverbs.CompChannel
			for range channels {
				chs = append(chs, r.channel())
			}
			var cqs []*ibverbs.CQ
			for i := range waiters {
				cqs = append(cqs, r.cq(1, chs[i%channels]))
			}

			type result struct {
				i   int
				at  time.Time
				err error
			}
			results := make(chan result, waiters)
			start := func(ctx func(i int) context.Context) {
				for i, cq := range cqs {
					go func() {
						err := waitErr(ctx(i), cq)
						results <- result{i, time.Now(), err}
					}()
				}
				for _, cq := range cqs {
					untilWaiting(t, cq)
				}
			}
			one := func() result {
				select {
				case got := <-results:
					return got
				case <-time.After(patience):
					require.FailNow(t, "a wait did not end")
					return result{}
				}
			}

			cancels := make([]context.CancelFunc, waiters)
			ctxs := make([]context.Context, waiters)
			for i := range ctxs {
				ctxs[i], cancels[i] = context.WithCancel(t.Context())
			}
			start(func(i int) context.Context { return ctxs[i] })
			var slowest time.Duration
			for i, cancel := range cancels { // one at a time
				begin := time.Now()
				cancel()
				got := one()
				require.Equal(t, i, got.i, "only this one ends")
				require.ErrorIs(t, got.err, context.Canceled)
				slowest = max(slowest, got.at.Sub(begin))
			}
			t.Logf("slowest of %d cancels, one at a time: %v", waiters, slowest)

			ctx, cancel := context.WithCancel(t.Context())
			start(func(int) context.Context { return ctx })
			begin := time.Now()
			cancel()
			slowest = 0
			for range waiters {
				got := one()
				require.ErrorIs(t, got.err, context.Canceled)
				slowest = max(slowest, got.at.Sub(begin))
			}
			t.Logf("%d waits of one context, all ended after: %v", waiters, slowest)

			start(func(int) context.Context { return limit(t) })
			untilNoThreads(t, waiters)
			slowest = 0
			for i, cq := range cqs {
				begin := time.Now()
				require.NoError(t, cq.Close())
				got := one()
				require.Equal(t, i, got.i)
				require.True(t, errors.Is(got.err, os.ErrClosed), "%v", got.err)
				slowest = max(slowest, got.at.Sub(begin))
			}
			t.Logf("slowest of %d closes, one at a time: %v", waiters, slowest)
		})
	}
}

// A message without SendSolicited arrives, but wakes no goroutine.
func TestSolicitedEvents(t *testing.T) {
	r := open(t)
	r.have(testdevice.Solicited)
	recvCQ := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: r.channel(), SolicitedOnly: true}))(t)
	r.cleanup(recvCQ)
	a, b := r.end(nil), r.withCQs(r.cq(depth, nil), recvCQ, depth)
	require.NoError(t, b.qp.ToReset()) // it was connected with itself
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	done, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, waitErr(done, recvCQ), context.Canceled, "armed, with nothing there")
	event := func() error {
		if recvCQ.Wakes() {
			if !recvCQ.TakeWake() {
				return syscall.EAGAIN
			}
			return nil
		}
		cq, _, err := libibverbs.GetCqEvent(recvCQ.Raw().Channel)
		if err != nil {
			return err
		}
		return libibverbs.AckCqEvents(cq, 1) // without it, Close would wait for ever
	}
	for id, tt := range []struct {
		flags ibverbs.SendFlags
		want  error
	}{
		{0, syscall.EAGAIN},
		{ibverbs.SendSolicited, nil},
	} {
		b.postRecv(t, uint64(id))
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(0, ibverbs.SendSignaled|tt.flags) })
		collectOK(t, a.sendCQ, 1) // so that the receive is complete, too
		require.ErrorIs(t, event(), tt.want)
	}
	for id, wc := range collectOK(t, recvCQ, 2) {
		require.EqualValues(t, id, wc.ID())
	}
}
