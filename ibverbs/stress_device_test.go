package ibverbs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// rallies is how many messages go in each direction of a ping-pong. Each of
// their completions needs a wake-up of its own: a lost one stops the test.
const rallies = 800

// pingPong lets two ends send each other a message in turn, each waiting for
// its completions and never polling without a wait.
func pingPong(ctx context.Context, me *end, begins bool, n int) error {
	wcs := make([]ibverbs.WC, 4)
	next := func(cq *ibverbs.CQ, id uint64) error {
		if _, err := cq.Wait(ctx, wcs[:1]); err != nil {
			return fmt.Errorf("message %d: %w", id, err)
		}
		if err := wcs[0].Err(); err != nil {
			return err
		}
		if wcs[0].ID() != id {
			return fmt.Errorf("completion of %d instead of %d", wcs[0].ID(), id)
		}
		return nil
	}
	send := func(id uint64) error {
		me.send.Reset()
		if err := me.send.Send(id, ibverbs.SendSignaled|ibverbs.SendInline, me.mr.Sub(0, 8)); err != nil {
			return err
		}
		if _, err := me.qp.PostSend(me.send); err != nil {
			return err
		}
		return next(me.sendCQ, id)
	}
	receive := func(id uint64) error {
		if err := next(me.recvCQ, id); err != nil {
			return err
		}
		me.recv.Reset()
		if err := me.recv.Recv(id+2, me.mr.Sub(8, 8)); err != nil {
			return err
		}
		_, err := me.qp.PostRecv(me.recv)
		return err
	}
	for id := range uint64(n) {
		steps := []func(uint64) error{receive, send}
		if begins {
			steps = []func(uint64) error{send, receive}
		}
		for _, step := range steps {
			if err := step(id); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestNoWakeUpIsLost(t *testing.T) {
	r := open(t)
	for name, tt := range map[string]struct{ pairs, channels int }{
		"one channel":             {pairs: 1, channels: 1},
		"four pairs, one channel": {pairs: 4, channels: 1},
		"four pairs of channels":  {pairs: 4, channels: 8},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			var chs []*ibverbs.CompChannel
			for range tt.channels {
				chs = append(chs, r.channel())
			}
			ctx := limit(t)
			var all sync.WaitGroup
			for i := range tt.pairs {
				a, b := r.end(chs[2*i%tt.channels]), r.end(chs[(2*i+1)%tt.channels])
				r.connect(a, linkTo(b.qp))
				r.connect(b, linkTo(a.qp))
				for _, e := range []*end{a, b} {
					e.postRecv(t, 0, e.mr.Sub(8, 8))
					e.postRecv(t, 1, e.mr.Sub(8, 8))
					all.Go(func() {
						if err := pingPong(ctx, e, e == a, rallies/tt.pairs); err != nil {
							t.Error(err)
						}
					})
				}
			}
			all.Wait()
		})
	}
}

// A wait that is cancelled loses nothing for the next one, whether its cancel
// comes before the completion or together with it.
func TestCancelsLoseNothing(t *testing.T) {
	r := open(t)
	a, b := r.pair(r.channel())
	const messages = 600
	ctx := limit(t)
	canceled := 0
	for id := range uint64(messages) {
		waitCtx, cancel := context.WithCancel(ctx)
		w := waiter(waitCtx, b.recvCQ)
		var got waited
		if id%2 == 0 {
			cancel()
			got = ended(t, w)
			ping(t, a, b, id)
		} else {
			go cancel()
			ping(t, a, b, id)
			got = ended(t, w)
		}
		if got.err != nil {
			require.ErrorIs(t, got.err, context.Canceled)
			canceled++
			got = ended(t, waiter(ctx, b.recvCQ))
		}
		requireOne(t, got, id)
		collectOK(t, a.sendCQ, 1)
	}
	t.Logf("%d of %d waits were cancelled", canceled, messages)
	require.GreaterOrEqual(t, canceled, messages/2)
}

// Everything is used and closed at once: nothing crashes, and what is closed
// says so.
func TestCloseDuringUse(t *testing.T) {
	r := open(t)
	for range 20 {
		ch := must(r.c.CreateCompChannel())(t)
		cq := must(r.c.CreateCQ(ibverbs.CQConfig{Entries: depth, Channel: ch}))(t)
		qp := must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 8, MaxRecvWR: 8}))(t)
		r.connect(&end{rig: r, qp: qp}, linkTo(qp)) // with itself
		mr := must(r.pd.Alloc(64, anyAccess))(t)
		ctx := limit(t)

		var start, users, closers sync.WaitGroup
		start.Add(1)
		use := func(f func() error) {
			users.Go(func() {
				start.Wait()
				for {
					err := f()
					if errors.Is(err, os.ErrClosed) {
						return
					}
					// A queue that nobody empties fast enough is full, and a
					// QP fails when its memory goes.
					var postErr *ibverbs.PostError
					if err != nil && !errors.As(err, &postErr) {
						t.Error(err)
						return
					}
				}
			})
		}
		use(func() error {
			b, err := ibverbs.NewRecvBatch(2, 1)
			if err != nil {
				return err
			}
			if err := b.Recv(1, mr.All()); err != nil {
				return err
			}
			_, err = qp.PostRecv(b)
			return err
		})
		use(func() error {
			b, err := ibverbs.NewSendBatch(2, 1)
			if err != nil {
				return err
			}
			if err := b.Send(1, ibverbs.SendSignaled, mr.All()); err != nil {
				return err
			}
			_, err = qp.PostSend(b)
			return err
		})
		for range 3 {
			use(func() error {
				_, err := cq.Wait(ctx, make([]ibverbs.WC, 4))
				return err
			})
		}
		use(func() error { _, err := qp.State(); return err })
		for _, c := range []interface{ Close() error }{mr, qp, cq, ch, mr, qp, cq, ch} {
			closers.Go(func() {
				start.Wait()
				for {
					err := c.Close()
					var busy *ibverbs.BusyError
					if !errors.As(err, &busy) {
						if err != nil {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		start.Done()
		closers.Wait()
		users.Wait()
	}
}
