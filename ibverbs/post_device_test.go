package ibverbs_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// A list that is too long is posted as far as there is room.
func TestPostToFullQueue(t *testing.T) {
	r := open(t)
	cq := r.cq(1024, nil)
	const room = 8
	qp := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: room, MaxRecvWR: room})
	r.toInit(qp)

	t.Run("receives", func(t *testing.T) {
		recv := must(ibverbs.NewRecvBatch(512, 0))(t)
		for i := range uint64(512) {
			require.NoError(t, recv.Recv(1000+i))
		}
		posted, err := qp.PostRecv(recv)
		requireFull(t, err, "ibv_post_recv", posted, 1000)
		require.NoError(t, qp.SetError()) // flushes
		for i, wc := range collect(t, cq, posted) {
			requireWC(t, wc, uint64(1000+i), qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
		}
		require.Zero(t, must(cq.Poll(make([]ibverbs.WC, 1)))(t), "no more than were posted")
	})

	t.Run("sends", func(t *testing.T) {
		a, b := r.pair(nil)
		b.recv.Reset()
		for i := range uint64(depth) {
			require.NoError(t, b.recv.Recv(i))
		}
		require.Equal(t, depth, must(b.qp.PostRecv(b.recv))(t))
		// A missing peer keeps the queue full while the list is posted.
		lonely := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: room, MaxRecvWR: 1})
		r.connect(&end{rig: r, qp: lonely}, link{peer: 0xFFFFF0, timeout: 8, retries: 1})
		send := must(ibverbs.NewSendBatch(512, 0))(t)
		for i := range uint64(512) {
			require.NoError(t, send.Send(2000+i, ibverbs.SendSignaled))
		}
		posted, err := lonely.PostSend(send)
		requireFull(t, err, "ibv_post_send", posted, 2000)
		wcs := collect(t, cq, posted)
		requireWC(t, wcs[0], 2000, lonely, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
		for i, wc := range wcs[1:] {
			requireWC(t, wc, uint64(2001+i), lonely, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
		}

		// With a peer the posted ones arrive, and the others do not.
		a.send.Reset()
		for i := range uint64(depth) {
			require.NoError(t, a.send.Send(i, ibverbs.SendSignaled))
		}
		require.Equal(t, depth, must(a.qp.PostSend(a.send))(t))
		collectOK(t, b.recvCQ, depth)
		collectOK(t, a.sendCQ, depth)
	})
}

// requireFull checks the error of a list of 512 requests whose IDs begin with
// first, of which some were posted.
func requireFull(t *testing.T, err error, op string, posted int, first uint64) {
	t.Helper()
	require.ErrorIs(t, err, syscall.ENOMEM)
	var postErr *ibverbs.PostError
	require.ErrorAs(t, err, &postErr)
	require.Equal(t, posted, postErr.Index)
	require.Equal(t, first+uint64(posted), postErr.ID)
	require.GreaterOrEqual(t, posted, 8, "what was asked for")
	require.Less(t, posted, 512)
	require.ErrorContains(t, err, op+" (QP ")
	require.ErrorContains(t, err, "the queue is full until completions have been polled")
	t.Logf("%d of 512 posted: %v", posted, err)
}

func TestPostInWrongState(t *testing.T) {
	r := open(t)
	e := r.end(nil) // in the reset state
	require.NoError(t, e.send.Send(7, 0))
	n, err := e.qp.PostSend(e.send)
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.EINVAL)
	var postErr *ibverbs.PostError
	require.ErrorAs(t, err, &postErr)
	require.Equal(t, uint64(7), postErr.ID)
	require.NotContains(t, err.Error(), "were posted")
}

func TestPostNothing(t *testing.T) {
	r := open(t)
	e := r.end(nil)
	for name, post := range map[string]func() (int, error){
		"nil send":  func() (int, error) { return e.qp.PostSend(nil) },
		"zero send": func() (int, error) { return e.qp.PostSend(&ibverbs.SendBatch{}) },
		"nil recv":  func() (int, error) { return e.qp.PostRecv(nil) },
		"zero recv": func() (int, error) { return e.qp.PostRecv(&ibverbs.RecvBatch{}) },
	} {
		_, err := post()
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, "the batch is nil", name)
	}
	require.Zero(t, must(e.qp.PostSend(e.send))(t))
	require.Zero(t, must(e.qp.PostRecv(e.recv))(t))
}

func TestPostAfterClose(t *testing.T) {
	r := open(t)
	e := r.end(nil)
	require.NoError(t, e.qp.Close())
	_, err := e.qp.PostSend(e.send)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "QP ")
	_, err = e.qp.PostRecv(e.recv)
	require.ErrorIs(t, err, os.ErrClosed)
	_, err = e.qp.State()
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, e.qp.SetError(), os.ErrClosed)
}

func TestPostingAndPollingAllocateNothing(t *testing.T) {
	r := open(t)
	for name, ch := range map[string]*ibverbs.CompChannel{"polled": nil, "with channel": r.channel()} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.pair(ch)
			wcs := make([]ibverbs.WC, depth)
			poll := func(cq *ibverbs.CQ, n int) {
				for n > 0 {
					k, err := cq.Poll(wcs)
					if err != nil {
						panic(err)
					}
					n -= k
				}
			}
			round := func() {
				b.recv.Reset()
				a.send.Reset()
				for i := range uint64(8) {
					_ = b.recv.Recv(i, b.mr.Sub(0, 64))
					_ = a.send.Send(i, ibverbs.SendSignaled|ibverbs.SendInline, a.mr.Sub(0, 64))
				}
				if _, err := b.qp.PostRecv(b.recv); err != nil {
					panic(err)
				}
				if _, err := a.qp.PostSend(a.send); err != nil {
					panic(err)
				}
				poll(b.recvCQ, 8)
				poll(a.sendCQ, 8)
			}
			require.Zero(t, testing.AllocsPerRun(100, round))
		})
	}
}
