package ibverbs_test

import (
	"iter"
	"math"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Which events Soft-RoCE raises, as the drivers of Linux 6.1 and 7.2 have it.
// That of 6.12 raises what 7.2's does, but for the local access violation.
//
//	event                    6.1  7.2  raised by                          test
//	CQ error                 yes  yes  driver, a completion too many      TestCQOverrun
//	send queue drained       yes  yes  driver, in the state SQD           TestSQDrained
//	SRQ limit reached        yes  yes  driver, few receives are left      TestSRQLimit
//	port active, port error  yes  yes  driver or core, as the link goes   TestPortEvents
//	GID table change         yes  yes  core, as addresses change          TestGIDChange
//	local access violation   no   yes  driver, a peer uses a wrong key    TestEventsOfOccasion
//	last WQE reached         no   yes  driver, in the error state         TestEventsOfOccasion
//	communication            no   no   the driver does not look whether   TestEventsOfOccasion
//	established                        the QP is only ready to receive
//	invalid request          no   no   the peer is told with a NAK; the   TestEventsOfOccasion
//	                                   QP has the error state, silently
//	device catastrophic      no   no   the kernel sends it when it takes a device from its
//	error                              users, which it cannot with Soft-RoCE: TestRemovalWaits
//	QP and SRQ catastrophic  no   no   errors of hardware
//	error, WQ fatal
//	path migrated, path      no   no   there are no alternate paths
//	migration error
//	LID, P_Key, SM change,   no   no   Ethernet has no subnet manager
//	client reregistration
//	device speed change      no   no   the driver has no code for it
//
// TestToldEvents has all of them with the kernel's part played by the test.

// wantEvent waits for an event of a type. Addresses and links may change at any
// time; no other event may come before it.
func wantEvent(t testing.TB, c *ibverbs.Device, want ibverbs.EventType) ibverbs.Event {
	t.Helper()
	ctx := limit(t)
	for {
		ev := must(c.NextEvent(ctx))(t)
		require.Same(t, c, ev.Device)
		if ev.Type == want {
			return ev
		}
		require.Equal(t, ibverbs.EventClassPort, ev.Type.Class(), "%v", ev)
	}
}

// drain makes the QP, which must be ready to send, raise EventSQDrained.
func drain(qp *ibverbs.QP) error {
	return qp.ModifyRaw(&libibverbs.QpAttr{QpState: ibverbs.QPStateSQD, EnSqdAsyncNotify: 1},
		libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_EN_SQD_ASYNC_NOTIFY)
}

func TestSQDrained(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	for _, e := range []*end{a, b} {
		require.NoError(t, drain(e.qp))
		ev := wantEvent(t, r.c, ibverbs.EventSQDrained)
		require.Same(t, e.qp, ev.QP())
		require.Equal(t, e.qp.Num(), ev.Number)
		require.Nil(t, ev.CQ())
		require.Zero(t, ev.Port())
	}
}

func TestCQOverrun(t *testing.T) {
	r := open(t)
	a, b := &end{rig: r, sendCQ: r.cq(1, nil), recvCQ: r.cq(1, nil)}, r.end(nil)
	a.qp = r.qp(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, MaxSendWR: depth, MaxRecvWR: 1})
	a.send = must(ibverbs.NewSendBatch(depth, 1))(t)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	tooMany := a.sendCQ.Len() + 1
	require.LessOrEqual(t, tooMany, depth)
	for id := range uint64(tooMany) {
		b.postRecv(t, id)
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(id, ibverbs.SendSignaled) })
	}
	ev := wantEvent(t, r.c, ibverbs.EventCQError)
	require.Same(t, a.sendCQ, ev.CQ())
	require.Same(t, a.sendCQ, ev.Object)
	require.True(t, ev.Type.Fatal())
}

// newSRQ makes a shared receive queue with receives in it.
func newSRQ(t *testing.T, r *rig, receives int) *ibverbs.SRQ {
	t.Helper()
	srq := must(r.pd.CreateSRQ(ibverbs.SRQConfig{MaxWR: depth}))(t)
	r.cleanup(srq)
	batch := must(ibverbs.NewRecvBatch(receives, 1))(t)
	for id := range uint64(receives) {
		require.NoError(t, batch.Recv(id))
	}
	_, err := srq.PostRecv(batch)
	require.NoError(t, err)
	return srq
}

// srqEnd makes an end whose receives come from the queue.
func srqEnd(r *rig, srq *ibverbs.SRQ) *end {
	r.t.Helper()
	e := &end{rig: r, sendCQ: r.cq(depth, nil), recvCQ: r.cq(depth, nil)}
	config := ibverbs.QPConfig{SendCQ: e.sendCQ, RecvCQ: e.recvCQ, MaxSendWR: depth, SRQ: srq}
	e.qp = must(r.pd.CreateQP(config))(r.t)
	r.cleanup(e.qp)
	return e
}

func TestSRQLimit(t *testing.T) {
	r := open(t)
	srq := newSRQ(t, r, 4)
	a, b := r.end(nil), srqEnd(r, srq)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	require.NoError(t, srq.SetLimit(3))
	for id := range uint64(3) {
		a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(id, ibverbs.SendSignaled) })
		collectOK(t, a.sendCQ, 1)
		collectOK(t, b.recvCQ, 1)
	}
	ev := wantEvent(t, r.c, ibverbs.EventSRQLimitReached)
	require.Same(t, srq, ev.SRQ())
}

func TestPortEvents(t *testing.T) {
	r := openOwn(t)
	for range 3 {
		for _, tt := range []struct {
			state string
			want  ibverbs.EventType
		}{{"down", ibverbs.EventPortError}, {"up", ibverbs.EventPortActive}} {
			run(t, "ip", "link", "set", ownNetDev, tt.state)
			ev := wantEvent(t, r.c, tt.want)
			require.Equal(t, 1, ev.Port())
			require.Nil(t, ev.Object)
		}
	}
}

func TestGIDChange(t *testing.T) {
	r := openOwn(t)
	addr := netip.MustParseAddr("203.0.113.2")
	for _, change := range []string{"add", "delete"} {
		run(t, "ip", "address", change, addr.String()+"/24", "dev", ownNetDev)
		for changed := false; !changed; {
			ev := wantEvent(t, r.c, ibverbs.EventGIDChange)
			require.Equal(t, 1, ev.Port())
			require.Equal(t, "rxe9 port 1: GID table change", ev.String())
			_, there := r.gidIndex(addr)
			changed = there == (change == "add")
		}
	}
}

// What hardware has an event for, and Soft-RoCE has not, or not always: newer
// drivers must raise the event, and what comes of others must be right.
func TestEventsOfOccasion(t *testing.T) {
	never := [2]int{math.MaxInt}
	for name, tt := range map[string]struct {
		event    ibverbs.EventType
		since    [2]int // Linux, whose Soft-RoCE must raise it
		occasion func(t *testing.T, r *rig) *ibverbs.QP
	}{
		"message before ready to send": {ibverbs.EventCommEstablished, never, func(t *testing.T, r *rig) *ibverbs.QP {
			a, b := r.end(nil), r.end(nil)
			r.connect(a, linkTo(b.qp))
			r.toInit(b.qp)
			b.postRecv(t, 1)
			r.toRTR(b.qp, linkTo(a.qp))
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, ibverbs.SendSignaled) })
			collectOK(t, b.recvCQ, 1)
			return b.qp
		}},
		"write without the right": {ibverbs.EventQPAccessError, [2]int{7, 2}, func(t *testing.T, r *rig) *ibverbs.QP {
			a, b := r.pair(nil)
			remote := b.mr.Remote()
			remote.RKey ^= 0x5A
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Write(1, remote, 0, a.mr.Sub(0, 8)) })
			require.Equal(t, ibverbs.WCRemoteAccess, collect(t, a.sendCQ, 1)[0].Status())
			return b.qp
		}},
		"message longer than the receive": {ibverbs.EventQPRequestError, never, func(t *testing.T, r *rig) *ibverbs.QP {
			a, b := r.pair(nil)
			b.postRecv(t, 1, b.mr.Sub(0, 4))
			a.postSend(t, func(s *ibverbs.SendBatch) error { return s.Send(1, 0, a.mr.Sub(0, 8)) })
			require.NotEqual(t, ibverbs.WCSuccess, collect(t, a.sendCQ, 1)[0].Status())
			return b.qp
		}},
		"error with a shared receive queue": {ibverbs.EventLastWQEReached, [2]int{6, 12}, func(t *testing.T, r *rig) *ibverbs.QP {
			e := srqEnd(r, newSRQ(t, r, 4))
			r.connect(e, linkTo(e.qp))
			require.NoError(t, e.qp.SetError())
			return e.qp
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			qp := tt.occasion(t, r)
			last, _ := r.pair(nil)
			require.NoError(t, drain(last.qp))
			raised := false
			for ev := range r.eventsUntil(last.qp) {
				require.Equal(t, tt.event, ev.Type)
				require.Same(t, qp, ev.QP())
				raised = true
			}
			if softRoCESince(t, tt.since[0], tt.since[1]) {
				require.True(t, raised)
			}
			t.Logf("%v raised: %v", tt.event, raised)
		})
	}
}

// softRoCESince reports whether this is the guest, with this kernel or a later
// one.
func softRoCESince(t testing.TB, major, minor int) bool {
	t.Helper()
	return os.Getenv("RDMA_VM") != "" && testdevice.LinuxSince(t, major, minor)
}

// eventsUntil gives the events of objects that come before a QP's.
func (r *rig) eventsUntil(last *ibverbs.QP) iter.Seq[ibverbs.Event] {
	return func(yield func(ibverbs.Event) bool) {
		for ev, err := range r.c.Events(limit(r.t)) {
			require.NoError(r.t, err)
			if ev.QP() == last {
				return
			}
			if ev.Type.Class() != ibverbs.EventClassPort && !yield(ev) {
				return
			}
		}
	}
}
