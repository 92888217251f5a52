// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

var rxeTypes = map[string]ibverbs.QPType{
	"RC": ibverbs.QPTypeRC, "UC": ibverbs.QPTypeUC, "UD": ibverbs.QPTypeUD,
}

// Each type goes through all states, works, and does so again after a reset.
func TestAllStates(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	for name, qpType := range rxeTypes {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			a, b := r.typedEnd(ibverbs.QPConfig{Type: qpType}), r.typedEnd(ibverbs.QPConfig{Type: qpType})
			is := func(state ibverbs.QPState) {
				t.Helper()
				require.Equal(t, state, must(a.qp.State())(t))
			}
			for range 2 {
				is(ibverbs.QPStateReset)
				require.NoError(t, a.qp.ToInit(r.init(qpType)))
				is(ibverbs.QPStateInit)
				require.NoError(t, a.qp.ToRTR(r.rtr(qpType, b.qp.Num())))
				is(ibverbs.QPStateRTR)
				require.NoError(t, a.qp.ToRTS(r.rts(qpType)))
				is(ibverbs.QPStateRTS)
				r.bring(b.qp, a.qp.Num(), ibverbs.QPStateRTS)
				exchange(t, a, b)
				require.NoError(t, a.qp.ToSQD(true))
				is(ibverbs.QPStateSQD)
				untilDrained(t, a.qp)
				require.NoError(t, a.qp.Resume())
				is(ibverbs.QPStateRTS)
				exchange(t, a, b)
				require.NoError(t, a.qp.SetError())
				is(ibverbs.QPStateError)
				require.NoError(t, a.qp.SetError())
				require.NoError(t, a.qp.ToReset())
				require.NoError(t, b.qp.ToReset())
			}
		})
	}
}

// The tables say what the kernel does: with each attribute more and less.
func TestTransitionsAsTheKernelHasThem(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	path := r.path()
	attr := func(from, to ibverbs.QPState, qpType ibverbs.QPType) ibverbs.QPAttr {
		init, rtr, rts := r.init(qpType), r.rtr(ibverbs.QPTypeRC, 5), r.rts(ibverbs.QPTypeRC)
		return ibverbs.QPAttr{
			State: to, CurState: from, Access: init.Access, Port: r.device.Port, QKey: qkey, Path: path,
			PathMTU: rtr.PathMTU, DestQPNum: rtr.DestQPNum, RecvPSN: psn, SendPSN: psn,
			MinRNRTimer: rtr.MinRNRTimer, Timeout: rts.Timeout, RetryCount: 1, RNRRetryCount: 1,
			MaxReadAtomic: 1, MaxDestReadAtomic: 1,
		}
	}
	for name, qpType := range rxeTypes {
		t.Run(name, func(t *testing.T) {
			r := r.sub(t)
			e := r.typedEnd(ibverbs.QPConfig{Type: qpType})
			asked := 0
			for from := ibverbs.QPStateReset; from <= ibverbs.QPStateError; from++ {
				if from == ibverbs.QPStateSQE {
					continue // only an error leads there
				}
				r.bring(e.qp, 5, from)
				for to := ibverbs.QPStateReset; to <= ibverbs.QPStateError; to++ {
					a := attr(from, to, qpType)
					required := ibverbs.QPAttrState | ibverbs.RequiredAttrs(qpType, from, to)
					for bit := ibverbs.QPAttrState; bit <= ibverbs.QPAttrDestQPNum; bit <<= 1 {
						if bit == ibverbs.QPAttrAltPath || bit == libibverbs.IBV_QP_CAP {
							continue // RoCE has no alternate paths; the capacities do not reach the kernel
						}
						mask := required
						if bit != ibverbs.QPAttrState {
							mask ^= bit
						}
						want := ibverbs.CheckTransition(qpType, from, to, mask)
						raw := must(a.Raw(mask))(t)
						got := libibverbs.ModifyQp(e.qp.Raw(), &raw, mask)
						asked++
						if want != nil || r.device.SoftRoCE() && kernelLacks(qpType, from, to, mask) {
							require.ErrorIs(t, got, syscall.EINVAL, "%v", want)
							continue
						}
						require.NoError(t, got, "%v -> %v with %v", from, to, mask)
						untilDrained(t, e.qp) // rxe does not go from SQD to reset before
						require.NoError(t, e.qp.ToReset())
						r.bring(e.qp, 5, from)
					}
				}
				require.NoError(t, e.qp.ToReset())
			}
			t.Logf("%d changes asked of the kernel", asked)
		})
	}
}

// kernelLacks reports whether the kernel refuses what the specification has.
func kernelLacks(t ibverbs.QPType, from, to ibverbs.QPState, mask ibverbs.QPAttrMask) bool {
	switch {
	case from == ibverbs.QPStateReset && to == ibverbs.QPStateError:
		return true
	case from == ibverbs.QPStateSQD && to == ibverbs.QPStateSQD && t == ibverbs.QPTypeUC:
		// It adds the port to a path, and then has it that this type lacks the
		// port.
		return mask&ibverbs.QPAttrPath != 0
	}
	return false
}

// What is refused does not change the state, and says why.
func TestRefusedTransitions(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	r.have(testdevice.InfiniBand, testdevice.Unreliable)
	e := r.typedEnd(ibverbs.QPConfig{})
	refused := func(err error, text string) {
		t.Helper()
		var transitionErr *ibverbs.TransitionError
		require.ErrorAs(t, err, &transitionErr)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "ibv_modify_qp (QP ")
		require.ErrorContains(t, err, text)
	}
	refused(e.qp.ToRTR(r.rtr(ibverbs.QPTypeRC, 5)), "RC reset -> rtr: no such transition; the states after reset are reset, init, error")
	refused(e.qp.ToInit(ibverbs.InitAttr{}), "RC reset -> init: missing port_num")
	refused(e.qp.ToInit(ibverbs.InitAttr{Port: 1, QKey: 1}), "RC reset -> init: not allowed: qkey")
	require.Equal(t, ibverbs.QPStateReset, must(e.qp.State())(t))
	r.bring(e.qp, 5, ibverbs.QPStateInit)
	refused(e.qp.ToRTR(ibverbs.RTRAttr{}), "RC init -> rtr: missing ah_attr, path_mtu, dest_qp_num")
	refused(e.qp.ModifyRaw(&libibverbs.QpAttr{QpState: ibverbs.QPStateRTR, Timeout: 1},
		libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_TIMEOUT|libibverbs.IBV_QP_AV|libibverbs.IBV_QP_PATH_MTU|
			libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC|libibverbs.IBV_QP_MIN_RNR_TIMER),
		"RC init -> rtr: missing rq_psn, dest_qp_num; not allowed: timeout")
	require.NoError(t, e.qp.ToRTR(r.rtr(ibverbs.QPTypeRC, 5)))
	refused(e.qp.Resume(), "RC rtr -> rts: missing timeout, retry_cnt, rnr_retry, max_rd_atomic, sq_psn")
	require.Equal(t, ibverbs.QPStateRTR, must(e.qp.State())(t))

	uc := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUC})
	r.bring(uc.qp, 5, ibverbs.QPStateRTR)
	refused(uc.qp.ToRTS(r.rts(ibverbs.QPTypeRC)), "UC rtr -> rts: not allowed: timeout, retry_cnt, rnr_retry, max_rd_atomic")

	// The device finds what the tables cannot.
	bad := r.rtr(ibverbs.QPTypeRC, 5)
	bad.Path.SGIDIndex = 255
	f := r.typedEnd(ibverbs.QPConfig{})
	r.bring(f.qp, 5, ibverbs.QPStateInit)
	err := f.qp.ToRTR(bad)
	require.Error(t, err)
	var transitionErr *ibverbs.TransitionError
	require.NotErrorAs(t, err, &transitionErr)
	require.ErrorContains(t, err, "ibv_modify_qp (QP ")
}

// What C noted about the state is out of date after an error, or when another
// process changed it: the device's word counts.
func TestStateThatCDoesNotKnow(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	r.have(testdevice.InfiniBand) // on iWARP, C alone decides about transitions
	a, b := r.pair(nil)
	remote := b.mr.Remote()
	remote.RKey ^= 0x5A
	a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Write(1, remote, 0, a.mr.Sub(0, 8)) })
	requireWC(t, collect(t, a.sendCQ, 1)[0], 1, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
	require.Equal(t, ibverbs.QPStateRTS, a.qp.Raw().State, "C knows nothing")
	err := a.qp.ToSQD(false)
	require.ErrorContains(t, err, "RC error -> sqd: no such transition")
	require.NoError(t, a.qp.ToReset())

	e := r.typedEnd(ibverbs.QPConfig{})
	e.qp.Raw().State = ibverbs.QPStateRTS // it is in reset
	require.NoError(t, e.qp.ToInit(r.init(ibverbs.QPTypeRC)))
	e.qp.Raw().State = ibverbs.QPStateReset // it is in init
	require.NoError(t, e.qp.ToRTR(r.rtr(ibverbs.QPTypeRC, 5)))
	e.qp.Raw().State = ibverbs.QPStateInit // it is in RTR
	err = e.qp.ToRTR(r.rtr(ibverbs.QPTypeRC, 5))
	require.ErrorContains(t, err, "RC rtr -> rtr: no such transition; the states after rtr are reset, rts, error")
}

// A concurrent query of the state does not make a change fail.
func TestStateWhileItChanges(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	e := r.typedEnd(ibverbs.QPConfig{})
	done := make(chan struct{})
	asked := make(chan error)
	for range 2 {
		go func() {
			for {
				select {
				case <-done:
					asked <- nil
					return
				default:
					if _, err := e.qp.State(); err != nil {
						asked <- err
						return
					}
				}
			}
		}()
	}
	for range 50 {
		r.bring(e.qp, 5, ibverbs.QPStateRTS)
		require.Equal(t, ibverbs.QPStateRTS, must(e.qp.State())(t))
		require.NoError(t, e.qp.ToReset())
	}
	close(done)
	require.NoError(t, <-asked)
	require.NoError(t, <-asked)
}

func TestQuery(t *testing.T) {
	r := open(t)
	r.have(testdevice.Queries)
	r.have(testdevice.Segments(3), testdevice.Inline(100))
	e := r.typedEnd(ibverbs.QPConfig{MaxInline: 100, SendSegments: 3, RecvSegments: 2})
	r.bring(e.qp, 0xABCDE, ibverbs.QPStateRTS)
	a := must(e.qp.Query())(t)
	require.Equal(t, ibverbs.QPStateRTS, a.State)
	require.Equal(t, r.device.Port, a.Port)
	require.Equal(t, anyAccess, a.Access&anyAccess)
	require.EqualValues(t, 0xABCDE, a.DestQPNum)
	require.EqualValues(t, psn, a.SendPSN)
	require.EqualValues(t, psn, a.RecvPSN)
	require.Equal(t, must(r.c.QueryPort(r.device.Port))(t).ActiveMTU, a.PathMTU)
	require.Equal(t, 960*time.Microsecond, a.MinRNRTimer, "0.7 ms rounded up")
	require.Equal(t, 4096*time.Nanosecond<<18, a.Timeout, "1 s rounded up")
	require.Equal(t, 5, a.RetryCount)
	require.Equal(t, ibverbs.RNRRetryForever, a.RNRRetryCount)
	require.Equal(t, r.reads(2), a.MaxReadAtomic)
	require.Equal(t, r.reads(2), a.MaxDestReadAtomic)
	require.Equal(t, r.device.GID, a.Path.DGID)
	require.Equal(t, r.device.GIDIndex, a.Path.SGIDIndex)
	require.Equal(t, r.device.Port, a.Path.Port)
	require.False(t, a.Draining)

	granted := e.qp.Cap()
	require.GreaterOrEqual(t, granted.SendQueue, depth)
	require.GreaterOrEqual(t, granted.RecvQueue, depth)
	require.GreaterOrEqual(t, granted.SendSegments, 3)
	require.GreaterOrEqual(t, granted.RecvSegments, 2)
	require.GreaterOrEqual(t, granted.MaxInline, 100)
	t.Logf("granted %+v, asked %+v", granted, a.Cap)

	require.NoError(t, e.qp.Modify(ibverbs.QPAttr{MinRNRTimer: time.Millisecond}, ibverbs.QPAttrMinRNRTimer))
	require.Equal(t, 1280*time.Microsecond, must(e.qp.Query())(t).MinRNRTimer)

	ud := r.typedEnd(ibverbs.QPConfig{Type: ibverbs.QPTypeUD})
	r.bring(ud.qp, 0, ibverbs.QPStateRTS)
	require.EqualValues(t, qkey, must(ud.qp.Query())(t).QKey)
}

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
	r.have(testdevice.Queries)
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
	r.bring(a.qp, 0xFFFFF0, ibverbs.QPStateRTS) // without an answer
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
			a.qp = r.qp(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SendQueue: 16, RecvQueue: 16})
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
	r.connect(a, route{peer: 0xFFFFF0, timeout: 8, retries: 1}) // no such queue pair
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
