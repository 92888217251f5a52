package ibverbs_test

import (
	"errors"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// withCQ makes an end whose two directions complete into one queue, connected
// with itself.
func (r *rig) withCQ(cq *ibverbs.CQ, requests int) *end { return r.withCQs(cq, cq, requests) }

func (r *rig) withCQs(send, recv *ibverbs.CQ, requests int) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: send, recvCQ: recv, mr: r.alloc(mrSize, anyAccess)}
	e.qp = r.qp(ibverbs.QPConfig{SendCQ: send, RecvCQ: recv, MaxSendWR: requests, MaxRecvWR: requests})
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
	ch := r.channel()
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: depth, Channel: ch, Fields: ibverbs.WCStandard}))(t)
	r.cleanup(cq)
	e := r.withCQ(cq, depth)
	for name, poll := range map[string]func(wcs []ibverbs.WC) (int, error){
		"poll": cq.Poll,
		"spin": func(wcs []ibverbs.WC) (int, error) { return cq.Spin(wcs, ibverbs.MaxSpin) },
		"wait": func(wcs []ibverbs.WC) (int, error) { return cq.Wait(limit(t), wcs) },
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
		config.Entries = 4
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
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 8, SingleThreaded: true}))(t)
	r.cleanup(cq)
	e := r.withCQ(cq, 4)
	e.writes(t, 1, 3)
	collectOK(t, cq, 3)
}

// Resizing keeps what is in the queue, and those who use it.
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

	before := cq.Len()
	require.NoError(t, cq.Resize(100))
	require.GreaterOrEqual(t, cq.Len(), 100)
	require.Greater(t, cq.Len(), before)
	take(5)
	require.Error(t, cq.Resize(1), "there are more in it")
	require.GreaterOrEqual(t, cq.Len(), 100)
	take(10)
	e.writes(t, n, 90) // more than fitted before
	take(90)
	require.NoError(t, cq.Resize(4))
	require.Less(t, cq.Len(), 100)
	e.writes(t, n+90, 3)
	take(3)
	require.Zero(t, must(cq.Poll(wcs))(t))

	for _, entries := range []int{0, -1, math.MinInt} {
		require.ErrorIs(t, cq.Resize(entries), syscall.EINVAL)
	}
	require.Error(t, cq.Resize(1<<30), "more than any device has")
}

// An overrun loses completions. Those that are not lost come, and then an
// error, which wakes who waits, although nobody asks for events.
func TestOverrun(t *testing.T) {
	r := open(t)
	cq := r.cq(1, r.channel())
	kept := cq.Len()
	e := r.withCQ(cq, kept+8)
	e.writes(t, 0, kept+8)

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
		r.cleanup(must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: vector}))(t))
	}
	_, err := r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Vector: vectors})
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "which has 0 to ")
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
// another one, or the same, each with room for one completion, and then posts what
// gives each one: whoever takes an event, neither must miss its completion.
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
	const turns = depth / 2 // as nobody looks at the sender's completions
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
	cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: 1, Channel: r.channel()}))(t)
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
