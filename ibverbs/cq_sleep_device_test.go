package ibverbs_test

import (
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
		received := make(chan []ibverbs.WC)
		go func() { received <- sleep(t, b.recvCQ, 1) }()
		a.postSend(t, func(batch *ibverbs.SendBatch) error {
			return batch.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, 100))
		})
		sent := sleep(t, a.sendCQ, 1)
		for _, wc := range append(sent, <-received...) {
			require.NoError(t, wc.Err())
			require.Equal(t, id, wc.ID())
		}
	}
}

// Sleeping and waiting for queues that share a channel take each other's events:
// who waits is woken, and who sleeps finds its completions at the latest when its
// budget is used up.
func TestSleepBesideWait(t *testing.T) {
	r := open(t)
	channel := r.channel()
	a, b := r.pair(channel)
	ctx := limit(t)
	const messages = 100
	waited := make(chan error, 1)
	go func() {
		wcs := make([]ibverbs.WC, 1)
		for range messages {
			if _, err := a.sendCQ.Wait(ctx, wcs); err != nil {
				waited <- err
				return
			}
		}
		waited <- nil
	}()
	for id := range uint64(messages) {
		b.postRecv(t, id, b.mr.Sub(0, 100))
		a.postSend(t, func(batch *ibverbs.SendBatch) error {
			return batch.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, 100))
		})
		require.Equal(t, id, sleep(t, b.recvCQ, 1)[0].ID())
	}
	require.NoError(t, <-waited)
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
