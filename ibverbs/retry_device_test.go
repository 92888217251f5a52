package ibverbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// A peer without a receive is waited for as often as asked, with whatever
// takes a receive.
func TestNoReceive(t *testing.T) {
	r := open(t)
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
					srq := r.srq(ibverbs.SRQConfig{MaxWR: 4})
					b.qp = r.qp(ibverbs.QPConfig{SendCQ: b.sendCQ, RecvCQ: b.recvCQ, MaxSendWR: 1, SRQ: srq})
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

// Whoever does not answer: the queue pair tries again, and gives up.
func TestNoAnswer(t *testing.T) {
	r := open(t)
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
				r.connect(a, link{peer: b.qp.Num(), timeout: 8, retries: 1}) // 1 ms
				bring(t, r, a, b)
				pattern(a.mr.Bytes(), 1)
				a.postSend(t, func(s *ibverbs.SendBatch) error { return requests[kind].add(s, remote, a.mr.Sub(64, 8)) })
				requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
				require.Equal(t, ibverbs.QPStateError, must(a.qp.State())(t))
				if name != "connected with another" { // Soft-RoCE does not look at who writes
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
	r.connect(a, link{peer: ud.qp.Num(), timeout: 8, retries: 1})
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0, a.mr.Sub(0, 8)) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRetryExceeded, ibverbs.WCClassTransport)
	require.Zero(t, must(ud.recvCQ.Poll(make([]ibverbs.WC, 1)))(t))
}
