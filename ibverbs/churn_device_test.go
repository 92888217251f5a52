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
)

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

// unexpected tells failures from what happens to those who use what others
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
	cq, err := c.r.c.CreateCQ(ibverbs.CQConfig{Entries: 4096, Channel: c.ch})
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
	qp, err := c.r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 16, MaxRecvWR: 16})
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
	init := &libibverbs.QpAttr{QpState: ibverbs.QPStateInit, PortNum: uint8(d.Port), QpAccessFlags: uint32(anyAccess)}
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
