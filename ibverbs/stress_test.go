// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
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
	r.have(testdevice.Inline(inline))
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
	r.have(testdevice.Queries)
	for range 20 {
		ch := must(r.c.CreateCompChannel())(t)
		cq := must(r.c.CreateCQ(ibverbs.CQConfig{CompQueue: depth, Channel: ch}))(t)
		qp := must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 8, RecvQueue: 8}))(t)
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
					// A queue that is not emptied fast enough is full, and a
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

// churnTime is how long TestChurn goes on. VERBENA_CHURN=30s makes it longer.
func churnTime(t testing.TB) time.Duration {
	t.Helper()
	s := os.Getenv("VERBENA_CHURN")
	if s == "" {
		return 5 * time.Second
	}
	return must(time.ParseDuration(s))(t)
}

// churn is what the goroutines of TestChurn share: each uses, closes and
// replaces all of it.
type churn struct {
	r    *rig
	mtu  libibverbs.Mtu
	ch   *ibverbs.CompChannel
	cq   atomic.Pointer[ibverbs.CQ]
	qps  [6]atomic.Pointer[ibverbs.QP]
	mrs  [3]atomic.Pointer[ibverbs.MR]
	done [5]atomic.Int64 // how often something succeeded; see the constants

	emptying atomic.Bool // no new QPs, so that the CQ can be closed
}

const (
	posted = iota
	completed
	qpsClosed
	mrsClosed
	cqsClosed
)

// TestChurn: goroutines that share a completion queue post, poll, wait, and
// close at random. Nothing crashes or hangs, and nothing is left.
func TestChurn(t *testing.T) {
	r := open(t)
	r.have(testdevice.Completions(4096))
	registered := ibverbs.Registered()
	c := &churn{r: r, ch: r.channel(), mtu: libibverbs.Mtu(must(r.c.QueryPort(r.device.Port))(t).ActiveMTU)}
	ctx, cancel := context.WithTimeout(t.Context(), churnTime(t))
	defer cancel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	for i := range uint64(8) {
		all.Go(func() {
			if err := c.run(ctx, rand.New(rand.NewPCG(seed, i))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for i := range c.qps {
		closeLast(t, c.qps[i].Load())
	}
	closeLast(t, c.cq.Load())
	for i := range c.mrs {
		closeLast(t, c.mrs[i].Load())
	}
	require.Equal(t, registered, ibverbs.Registered())
	t.Logf("%d requests posted, %d completed; %d QPs, %d MRs and %d CQs closed", c.done[posted].Load(),
		c.done[completed].Load(), c.done[qpsClosed].Load(), c.done[mrsClosed].Load(), c.done[cqsClosed].Load())
	for _, what := range []int{posted, completed, qpsClosed, mrsClosed} {
		require.NotZero(t, c.done[what].Load(), "of kind %d", what)
	}
}

func closeLast[T any, P interface {
	*T
	Close() error
}](t testing.TB, o P,
) {
	t.Helper()
	if o != nil {
		require.NoError(t, o.Close())
	}
}

func (c *churn) run(ctx context.Context, random *rand.Rand) error {
	send, err := ibverbs.NewSendBatch(4, 1)
	if err != nil {
		return err
	}
	recv, err := ibverbs.NewRecvBatch(4, 1)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		qp := c.qps[random.IntN(len(c.qps))].Load()
		mr := c.mrs[random.IntN(len(c.mrs))].Load()
		var err error
		switch n := random.IntN(100); {
		case mr == nil, n < 2:
			err = c.newMR(random.IntN(len(c.mrs)))
		case n < 3:
			err = c.newCQ()
		case qp == nil, n < 6:
			err = c.newQP(random)
		case n < 50:
			err = c.post(qp, mr, send, recv)
		case n < 60:
			err = c.wait(ctx, time.Duration(random.IntN(2000))*time.Microsecond)
		default:
			err = c.poll()
		}
		if unexpected(err) {
			return err
		}
	}
	return nil
}

// unexpected tells failures from the errors of goroutines that use what others
// close.
func unexpected(err error) bool {
	var busy *ibverbs.BusyError
	var postErr *ibverbs.PostError
	switch {
	case err == nil, errors.Is(err, os.ErrClosed), errors.As(err, &busy), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &postErr): // a full queue, or one in the error state
		return !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EINVAL)
	}
	return true
}

// replace puts o into a place and closes what was there. A loser against
// another goroutine closes its own.
func replace[T any, P interface {
	*T
	Close() error
}](place *atomic.Pointer[T], old, o *T,
) error {
	if !place.CompareAndSwap(old, o) {
		old = o
	}
	if old == nil {
		return nil
	}
	return P(old).Close()
}

func (c *churn) newMR(i int) error {
	old := c.mrs[i].Load()
	mr, err := c.r.pd.Alloc(4096, anyAccess)
	if err != nil {
		return err
	}
	c.done[mrsClosed].Add(1)
	return replace[ibverbs.MR](&c.mrs[i], old, mr)
}

// newCQ closes the completion queue, if no queue pair uses it, and makes one.
func (c *churn) newCQ() error {
	old := c.cq.Load()
	if old != nil {
		if err := old.Close(); err != nil {
			return err
		}
		c.done[cqsClosed].Add(1)
	}
	cq, err := c.r.c.CreateCQ(ibverbs.CQConfig{CompQueue: 4096, Channel: c.ch})
	if err != nil {
		return err
	}
	return replace[ibverbs.CQ](&c.cq, old, cq)
}

// newQP makes a queue pair that is connected with itself; one in ten times it
// closes all of them, and with them the completion queue.
func (c *churn) newQP(random *rand.Rand) error {
	cq := c.cq.Load()
	switch {
	case cq == nil:
		return c.newCQ()
	case c.emptying.Load():
		return nil
	case random.IntN(10) == 0:
		c.emptying.Store(true)
		defer c.emptying.Store(false)
		for i := range c.qps {
			if qp := c.qps[i].Swap(nil); qp != nil {
				c.done[qpsClosed].Add(1)
				if err := qp.Close(); err != nil {
					return err
				}
			}
		}
		return c.newCQ()
	}
	i := random.IntN(len(c.qps))
	old := c.qps[i].Load()
	qp, err := c.r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 16, RecvQueue: 16})
	if err != nil {
		return err
	}
	if err := c.connect(qp); err != nil {
		return errors.Join(err, qp.Close())
	}
	c.done[qpsClosed].Add(1)
	return replace[ibverbs.QP](&c.qps[i], old, qp)
}

func (c *churn) connect(qp *ibverbs.QP) error {
	d := c.r.device
	init := &libibverbs.QpAttr{QpState: ibverbs.QPStateInit, PortNum: uint8(d.Port), QpAccessFlags: anyAccess}
	rtr := &libibverbs.QpAttr{
		QpState: ibverbs.QPStateRTR, PathMtu: c.mtu, DestQpNum: qp.Num(), MaxDestRdAtomic: 1, MinRnrTimer: 1,
		AhAttr: libibverbs.AhAttr{
			IsGlobal: 1, PortNum: uint8(d.Port),
			Grh: libibverbs.GlobalRoute{SgidIndex: uint8(d.GIDIndex), HopLimit: 1},
		},
	}
	*rtr.AhAttr.Grh.Dgid.Raw() = d.GID
	rts := &libibverbs.QpAttr{QpState: ibverbs.QPStateRTS, Timeout: 14, RetryCnt: 7, RnrRetry: 1, MaxRdAtomic: 1}
	for _, step := range []struct {
		attr *libibverbs.QpAttr
		mask libibverbs.QpAttrMask
	}{
		{init, libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT | libibverbs.IBV_QP_ACCESS_FLAGS},
		{rtr, libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU | libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN |
			libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER},
		{rts, libibverbs.IBV_QP_SQ_PSN | libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT |
			libibverbs.IBV_QP_RNR_RETRY | libibverbs.IBV_QP_MAX_QP_RD_ATOMIC},
	} {
		if err := qp.ModifyRaw(step.attr, step.mask|libibverbs.IBV_QP_STATE); err != nil {
			return fmt.Errorf("to %v: %w", step.attr.QpState, err)
		}
	}
	return nil
}

func (c *churn) post(qp *ibverbs.QP, mr *ibverbs.MR, send *ibverbs.SendBatch, recv *ibverbs.RecvBatch) error {
	send.Reset()
	recv.Reset()
	for id := range uint64(2) {
		if err := recv.Recv(id, mr.Sub(0, 64)); err != nil {
			return err
		}
		if err := send.Send(id, ibverbs.SendSignaled, mr.Sub(64, 64)); err != nil {
			return err
		}
	}
	_, err := qp.PostRecv(recv)
	if err != nil {
		return err
	}
	n, err := qp.PostSend(send)
	c.done[posted].Add(int64(n))
	return err
}

func (c *churn) wait(ctx context.Context, atMost time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	cq := c.cq.Load()
	if cq == nil {
		return nil
	}
	var wcs [32]ibverbs.WC
	n, err := cq.Wait(ctx, wcs[:])
	return c.completed(wcs[:n], err)
}

func (c *churn) poll() error {
	cq := c.cq.Load()
	if cq == nil {
		return nil
	}
	var wcs [32]ibverbs.WC
	n, err := cq.Poll(wcs[:])
	return c.completed(wcs[:n], err)
}

func (c *churn) completed(wcs []ibverbs.WC, err error) error {
	c.done[completed].Add(int64(len(wcs)))
	for i := range wcs {
		var wcErr *ibverbs.WCError // of those whose memory or peer went
		if err := wcs[i].Err(); err != nil && !errors.As(err, &wcErr) {
			return err
		}
	}
	return err
}
