package ibverbs_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

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
