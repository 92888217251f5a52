// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/racing"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// A list that is too long is posted as far as there is room.
func TestPostToFullQueue(t *testing.T) {
	r := open(t)
	cq := r.cq(1024, nil)
	const room = 8
	qp := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: room, RecvQueue: room})
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
		lonely := r.qp(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: room, RecvQueue: 1})
		r.connect(&end{rig: r, qp: lonely}, route{peer: 0xFFFFF0, timeout: 8, retries: 1})
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
	r.have(testdevice.Queries)
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
	racing.NeedsDirectCalls(t)
	if os.Getenv("VERBENA_HOSTILE") != "" {
		t.Skip("a hostile network copies the packets that it delays")
	}
	r := open(t)
	for name, ch := range map[string]*ibverbs.CompChannel{"polled": nil, "with channel": r.channel()} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			r.have(testdevice.Inline(inline))
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

// A peer without a receive is waited for as often as asked, with whatever
// takes a receive.
func TestNoReceive(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	for name, send := range map[string]func(s *ibverbs.SendBatch, a, b *end) error{
		"send":            func(s *ibverbs.SendBatch, a, _ *end) error { return s.Send(1, 0, a.mr.Sub(0, 8)) },
		"empty send":      func(s *ibverbs.SendBatch, _, _ *end) error { return s.Send(1, 0) },
		"send imm":        func(s *ibverbs.SendBatch, a, _ *end) error { return s.SendImm(1, 7, 0, a.mr.Sub(0, 8)) },
		"send invalidate": func(s *ibverbs.SendBatch, _, b *end) error { return s.SendInv(1, b.mr.RKey(), 0) },
		"write imm":       func(s *ibverbs.SendBatch, a, b *end) error { return s.WriteImm(1, b.mr.Remote(), 7, 0, a.mr.Sub(0, 8)) },
	} {
		for _, shared := range []bool{false, true} {
			t.Run(name+map[bool]string{true: "/SRQ"}[shared], func(t *testing.T) {
				r := r.sub(t)
				a, b := r.end(nil), r.end(nil)
				if shared {
					srq := r.srq(ibverbs.SRQConfig{RecvQueue: 4})
					b.qp = r.qp(ibverbs.QPConfig{SendCQ: b.sendCQ, RecvCQ: b.recvCQ, SendQueue: 1, SRQ: srq})
				}
				l := linkTo(b.qp)
				l.rnrRetry = 1
				r.connect(a, l)
				r.connect(b, linkTo(a.qp))
				a.postSend(t, func(s *ibverbs.SendBatch) error {
					return errors.Join(send(s, a, b), s.Write(9, b.mr.Remote(), 0, a.mr.Sub(0, 8)))
				})
				wcs := collect(t, a.sendCQ, 2)
				requireWC(t, wcs[0], 1, a.qp, ibverbs.WCRNRRetryExceeded, ibverbs.WCClassTransport)
				requireWC(t, wcs[1], 9, a.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
				require.Equal(t, ibverbs.QPStateRTS, must(b.qp.State())(t), "the peer is fine")
				require.Zero(t, must(b.recvCQ.Poll(make([]ibverbs.WC, 1)))(t))
			})
		}
	}
}

// Endless tries end when a receive is posted.
func TestEndlessRNRRetries(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil) // with 7
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
	wcs := make([]ibverbs.WC, 1)
	for range 100 {
		require.Zero(t, must(a.sendCQ.Spin(wcs, ibverbs.MaxSpin/10))(t))
	}
	b.postRecv(t, 2, b.mr.Sub(0, 8))
	collectOK(t, a.sendCQ, 1)
	collectOK(t, b.recvCQ, 1)
}

// If the peer does not answer, for whatever reason, the queue pair retries and
// gives up.
func TestNoAnswer(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	for name, bring := range map[string]func(t *testing.T, r *rig, a, b *end){ // b, which is in the reset state
		"in reset": func(*testing.T, *rig, *end, *end) {},
		"in init":  func(_ *testing.T, r *rig, _, b *end) { r.toInit(b.qp) },
		"reset after it was connected": func(t *testing.T, r *rig, a, b *end) {
			r.connect(b, linkTo(a.qp))
			require.NoError(t, b.qp.ToReset())
		},
		"in error": func(t *testing.T, r *rig, a, b *end) {
			r.connect(b, linkTo(a.qp))
			require.NoError(t, b.qp.SetError())
		},
		"closed": func(t *testing.T, r *rig, a, b *end) {
			r.connect(b, linkTo(a.qp))
			require.NoError(t, b.qp.Close())
		},
		"connected with another": func(t *testing.T, r *rig, _, b *end) {
			other := r.end(nil)
			r.connect(b, linkTo(other.qp))
		},
		"expects other packets": func(t *testing.T, r *rig, a, b *end) {
			rtr := r.rtr(ibverbs.QPTypeRC, a.qp.Num())
			rtr.RecvPSN = psn - 1000
			require.NoError(t, b.qp.ToInit(r.init(ibverbs.QPTypeRC)))
			require.NoError(t, b.qp.ToRTR(rtr))
		},
	} {
		for _, kind := range []string{"send", "write", "read", "fetch and add"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				r := r.sub(t)
				a, b := r.opEnd(0, fullAccess), r.opEnd(0, fullAccess)
				remote := b.mr.Remote().Sub(64, 8)
				r.connect(a, route{peer: b.qp.Num(), timeout: 8, retries: 1}) // 1 ms
				bring(t, r, a, b)
				pattern(a.mr.Bytes(), 1)
				a.postSend(t, func(s *ibverbs.SendBatch) error { return requests[kind].add(s, remote, a.mr.Sub(64, 8)) })
				requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
				require.Equal(t, ibverbs.QPStateError, must(a.qp.State())(t))
				if name != "connected with another" { // Soft-RoCE does not check the sender of a write
					require.Equal(t, make([]byte, 128), b.mr.Bytes()[:128])
				}
			})
		}
	}
}

// Datagrams are not for connected queue pairs, nor the other way round.
func TestPeerOfAnotherType(t *testing.T) {
	r := open(t)
	ud := r.udEnd()
	ud.postRecv(t, 2, ud.mr.Sub(0, 100))
	a := r.end(nil)
	r.connect(a, route{peer: ud.qp.Num(), timeout: 8, retries: 1})
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0, a.mr.Sub(0, 8)) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
	require.Zero(t, must(ud.recvCQ.Poll(make([]ibverbs.WC, 1)))(t))
}
