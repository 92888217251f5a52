package ibverbs_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// reaction is what becomes of a request that is posted in a state.
type reaction int

const (
	refused reaction = iota
	kept             // until the state changes
	flushed
	done
)

func TestPostInEachState(t *testing.T) {
	r := open(t)
	for state, want := range map[ibverbs.QPState]struct{ send, recv reaction }{
		ibverbs.QPStateReset: {refused, refused},
		ibverbs.QPStateInit:  {refused, kept},
		ibverbs.QPStateRTR:   {refused, done},
		ibverbs.QPStateRTS:   {done, done},
		ibverbs.QPStateSQD:   {kept, done},
		ibverbs.QPStateError: {flushed, flushed},
	} {
		// rig returns a queue pair in the state, and a peer that is ready.
		pair := func(t *testing.T) (e, peer *end) {
			r := r.sub(t)
			e, peer = r.typedEnd(ibverbs.QPConfig{}), r.typedEnd(ibverbs.QPConfig{})
			r.bring(e.qp, peer.qp.Num(), state)
			r.bring(peer.qp, e.qp.Num(), ibverbs.QPStateRTS)
			return e, peer
		}
		t.Run(state.String()+"/send", func(t *testing.T) {
			e, peer := pair(t)
			peer.postRecv(t, 7, peer.mr.Sub(0, 8))
			peer.postRecv(t, 8, peer.mr.Sub(0, 8))
			require.NoError(t, e.send.Send(1, ibverbs.SendSignaled, e.mr.Sub(0, 8)))
			n, err := e.qp.PostSend(e.send)
			requirePosted(t, want.send, "ibv_post_send", n, err)
			e.requireReaction(t, want.send, e.sendCQ, 1, func() {
				require.NoError(t, e.qp.Resume())
				// Soft-RoCE looks at the queue again when there is more.
				e.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(2, 0, e.mr.Sub(0, 8)) })
			})
		})
		t.Run(state.String()+"/receive", func(t *testing.T) {
			e, peer := pair(t)
			require.NoError(t, e.recv.Recv(1, e.mr.Sub(0, 8)))
			n, err := e.qp.PostRecv(e.recv)
			requirePosted(t, want.recv, "ibv_post_recv", n, err)
			if want.recv == done {
				peer.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(3, 0, peer.mr.Sub(0, 8)) })
			}
			if want.recv == flushed { // Soft-RoCE looks at the queue again only when it fails again
				require.NoError(t, e.qp.SetError())
			}
			e.requireReaction(t, want.recv, e.recvCQ, 1, func() {
				require.NoError(t, e.qp.ToRTR(e.rig.rtr(ibverbs.QPTypeRC, peer.qp.Num())))
				peer.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(3, 0, peer.mr.Sub(0, 8)) })
			})
		})
	}
}

func requirePosted(t testing.TB, want reaction, op string, n int, err error) {
	t.Helper()
	if want != refused {
		require.NoError(t, err)
		return
	}
	require.Zero(t, n)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "request 0 of the batch (ID 1): "+op+" (QP ")
}

// requireReaction checks what comes into a queue; wake changes the state.
func (e *end) requireReaction(t testing.TB, want reaction, cq *ibverbs.CQ, id uint64, wake func()) {
	t.Helper()
	if want == refused || want == kept {
		require.Zero(t, must(cq.Spin(make([]ibverbs.WC, 1), ibverbs.MaxSpin))(t))
	}
	switch want {
	case kept:
		wake()
		fallthrough
	case done:
		require.Equal(t, id, collectOK(t, cq, 1)[0].ID())
	case flushed:
		requireWC(t, collect(t, cq, 1)[0], id, e.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
	}
}

// A reset forgets what was posted: nothing of it completes, before or after.
func TestResetForgets(t *testing.T) {
	r := open(t)
	a := r.typedEnd(ibverbs.QPConfig{})
	b := r.typedEnd(ibverbs.QPConfig{})
	r.bring(a.qp, 0xFFFFF0, ibverbs.QPStateRTS) // nobody answers
	for id := range uint64(5) {
		a.postRecv(t, 100+id, a.mr.Sub(0, 100))
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(id, ibverbs.SendSignaled, a.mr.Sub(0, 8)) })
	}
	require.NoError(t, a.qp.ToReset())
	r.bring(a.qp, b.qp.Num(), ibverbs.QPStateRTS)
	r.bring(b.qp, a.qp.Num(), ibverbs.QPStateRTS)
	exchange(t, a, b)
	for _, cq := range []*ibverbs.CQ{a.sendCQ, a.recvCQ} {
		require.Zero(t, must(cq.Poll(make([]ibverbs.WC, 1)))(t))
	}
}

// A request that fails flushes those behind it, signaled or not, and the
// receives, each queue in its order. Those before it have been done.
func TestFailureFlushesBothQueues(t *testing.T) {
	r := open(t)
	shared := r.cq(64, nil)
	for name, tt := range map[string]struct {
		cq func(e *end) (send, recv *ibverbs.CQ)
	}{
		"own queues":   {func(e *end) (send, recv *ibverbs.CQ) { return e.sendCQ, e.recvCQ }},
		"shared queue": {func(*end) (send, recv *ibverbs.CQ) { return shared, shared }},
	} {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.end(nil), r.end(nil)
			a.sendCQ, a.recvCQ = tt.cq(a)
			a.qp = r.qp(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, MaxSendWR: 16, MaxRecvWR: 16})
			r.connect(a, linkTo(b.qp))
			r.connect(b, linkTo(a.qp))
			for id := range uint64(4) {
				a.postRecv(t, 100+id, a.mr.Sub(0, 100))
			}
			wrong := b.mr.Remote()
			wrong.RKey ^= 0x5A
			a.postSend(t, func(s *ibverbs.SendBatch) error {
				return errors.Join(
					s.Write(0, b.mr.Remote(), ibverbs.SendSignaled, a.mr.Sub(0, 8)),
					s.Write(1, b.mr.Remote(), 0, a.mr.Sub(0, 8)),
					s.Write(2, wrong, 0, a.mr.Sub(0, 8)),
					s.Write(3, b.mr.Remote(), 0, a.mr.Sub(0, 8)),
					s.Read(4, b.mr.Remote(), ibverbs.SendSignaled, a.mr.Sub(0, 8)),
					s.Send(5, 0),
				)
			})
			var sent, received []ibverbs.WC
			take := func(cq *ibverbs.CQ, n int) {
				for _, wc := range collect(t, cq, n) {
					if wc.ID() < 100 {
						sent = append(sent, wc)
					} else {
						received = append(received, wc)
					}
				}
			}
			if a.sendCQ == a.recvCQ {
				take(shared, 5+4)
			} else {
				take(a.sendCQ, 5)
				take(a.recvCQ, 4)
			}
			require.Len(t, sent, 5)
			require.EqualValues(t, 0, sent[0].ID())
			require.NoError(t, sent[0].Err())
			requireWC(t, sent[1], 2, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
			for i, wc := range sent[2:] {
				requireWC(t, wc, uint64(3+i), a.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
			}
			for i, wc := range received {
				requireWC(t, wc, uint64(100+i), a.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
			}
			require.Zero(t, must(a.sendCQ.Poll(make([]ibverbs.WC, 1)))(t))
		})
	}
}

// Requests that are not signaled take their place in the queue until they are
// done, or, where a device says so, until a signaled one behind them is.
func TestQueueFullOfUnsignaled(t *testing.T) {
	r := open(t)
	a := r.end(nil)
	r.connect(a, link{peer: 0xFFFFF0, timeout: 8, retries: 1}) // nobody
	send := must(ibverbs.NewSendBatch(1024, 0))(t)
	for i := range uint64(1024) {
		require.NoError(t, send.Send(i, 0))
	}
	posted, err := a.qp.PostSend(send)
	require.ErrorIs(t, err, syscall.ENOMEM)
	require.GreaterOrEqual(t, posted, depth)
	var post *ibverbs.PostError
	require.ErrorAs(t, err, &post)
	require.Equal(t, posted, post.Index)

	first := collect(t, a.sendCQ, 1)[0]
	requireWC(t, first, 0, a.qp, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
	for i, wc := range collect(t, a.sendCQ, posted-1) {
		requireWC(t, wc, uint64(1+i), a.qp, ibverbs.WCFlushed, ibverbs.WCClassFlushed)
	}

	// With a peer, the places come back.
	a, b := r.pair(nil)
	for i := range uint64(4 * depth) {
		flags := ibverbs.SendFlags(0)
		if i%depth == depth-1 {
			flags = ibverbs.SendSignaled
		}
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Write(i, b.mr.Remote(), flags, a.mr.Sub(0, 8)) })
		if flags != 0 {
			require.Equal(t, i, collectOK(t, a.sendCQ, 1)[0].ID())
		}
	}
}
