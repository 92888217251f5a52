package ibverbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

// path leads from the device's port back to it.
func (r *rig) path() ibverbs.AHAttr {
	port := must(r.c.QueryPort(r.device.Port))(r.t)
	return ibverbs.AHAttr{
		Port: r.device.Port, DLID: port.LID, DGID: r.device.GID, SGIDIndex: r.device.GIDIndex, HopLimit: 1,
	}
}

// init, rtr and rts say how to bring a queue pair of a type into these states.
func (r *rig) init(t ibverbs.QPType) ibverbs.Init {
	if t == ibverbs.QPTypeUD {
		return ibverbs.Init{Port: r.device.Port, QKey: qkey}
	}
	return ibverbs.Init{Port: r.device.Port, Access: anyAccess}
}

func (r *rig) rtr(t ibverbs.QPType, peer uint32) ibverbs.RTR {
	rtr := ibverbs.RTR{
		Path: r.path(), PathMTU: must(r.c.QueryPort(r.device.Port))(r.t).ActiveMTU, DestQPNum: peer, RecvPSN: psn,
	}
	switch t {
	case ibverbs.QPTypeUD:
		return ibverbs.RTR{}
	case ibverbs.QPTypeRC:
		rtr.MaxDestReadAtomic, rtr.MinRNRTimer = 2, 700*time.Microsecond
	}
	return rtr
}

func (r *rig) rts(t ibverbs.QPType) ibverbs.RTS {
	if t == ibverbs.QPTypeRC {
		return ibverbs.RTS{
			SendPSN: psn, Timeout: time.Second, RetryCount: 5, RNRRetryCount: ibverbs.RNRRetryForever, MaxReadAtomic: 2,
		}
	}
	return ibverbs.RTS{SendPSN: psn}
}

// bring brings a queue pair from reset to a state.
func (r *rig) bring(qp *ibverbs.QP, peer uint32, state ibverbs.QPState) {
	r.t.Helper()
	if state == ibverbs.QPStateError {
		require.NoError(r.t, qp.ToInit(r.init(qp.Type())))
		require.NoError(r.t, qp.SetError())
		return
	}
	for _, step := range []struct {
		state ibverbs.QPState
		move  func() error
	}{
		{ibverbs.QPStateInit, func() error { return qp.ToInit(r.init(qp.Type())) }},
		{ibverbs.QPStateRTR, func() error { return qp.ToRTR(r.rtr(qp.Type(), peer)) }},
		{ibverbs.QPStateRTS, func() error { return qp.ToRTS(r.rts(qp.Type())) }},
		{ibverbs.QPStateSQD, func() error { return qp.ToSQD(false) }},
	} {
		if step.state <= state {
			require.NoError(r.t, step.move())
		}
	}
	if state == ibverbs.QPStateSQD {
		untilDrained(r.t, qp)
	}
}

// untilDrained returns when the queue pair has nothing under way.
func untilDrained(t testing.TB, qp *ibverbs.QP) {
	t.Helper()
	require.Eventually(t, func() bool { return !must(qp.Query())(t).Draining }, patience, time.Millisecond)
}

// typedEnd makes an end of a type that is in the reset state.
func (r *rig) typedEnd(config ibverbs.QPConfig) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, nil), recvCQ: r.cq(depth, nil), mr: r.alloc(mrSize, anyAccess)}
	config.SendCQ, config.RecvCQ = e.sendCQ, e.recvCQ
	config.MaxSendWR, config.MaxRecvWR = depth, depth
	e.qp = r.qp(config)
	e.send = must(ibverbs.NewSendBatch(depth, 1))(r.t)
	e.recv = must(ibverbs.NewRecvBatch(depth, 1))(r.t)
	return e
}

// exchange sends messages between ends that are ready to send, in both
// directions, and checks that they arrive.
func exchange(t testing.TB, a, b *end) {
	t.Helper()
	for i, from := range []*end{a, b} {
		to := []*end{b, a}[i]
		header := 0
		add := func(s *ibverbs.SendBatch) error { return s.Send(5, ibverbs.SendSignaled, from.mr.Sub(0, 100)) }
		if from.qp.Type() == ibverbs.QPTypeUD {
			header = ibverbs.GRHLen
			ah := must(from.rig.pd.CreateAH(from.rig.path()))(t)
			add = func(s *ibverbs.SendBatch) error {
				return s.SendTo(5, ibverbs.Destination{AH: ah, QPNum: to.qp.Num(), QKey: qkey}, ibverbs.SendSignaled, from.mr.Sub(0, 100))
			}
			defer func() { require.NoError(t, ah.Close()) }()
		}
		want := pattern(from.mr.Bytes()[:100], byte(i+1))
		to.postRecv(t, 6, to.mr.Sub(1000, 200))
		from.postSend(t, add)
		require.EqualValues(t, 5, collectOK(t, from.sendCQ, 1)[0].ID())
		wc := collectOK(t, to.recvCQ, 1)[0]
		require.EqualValues(t, 6, wc.ID())
		require.Equal(t, to.qp.Num(), wc.QPNum())
		require.Equal(t, 100+header, wc.ByteLen())
		require.Equal(t, want, to.mr.Bytes()[1000+header:][:100])
	}
}
