// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"context"
	"errors"
	"iter"
	"maps"
	"math"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
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
	a.qp = r.qp(ibverbs.QPConfig{SendCQ: a.sendCQ, RecvCQ: a.recvCQ, SendQueue: depth, RecvQueue: 1})
	a.send = must(ibverbs.NewSendBatch(depth, 1))(t)
	r.connect(a, linkTo(b.qp))
	r.connect(b, linkTo(a.qp))
	tooMany := a.sendCQ.Cap() + 1
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
	r.device.HaveAttr(t, r.c, &r.attr, testdevice.SRQs)
	srq := must(r.pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: depth}))(t)
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
	config := ibverbs.QPConfig{SendCQ: e.sendCQ, RecvCQ: e.recvCQ, SendQueue: depth, SRQ: srq}
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

// What Soft-RoCE has no event for, or not always: newer drivers and other
// devices must raise the event, and what comes of others must be right.
func TestEventsOfOccasion(t *testing.T) {
	never := [2]int{math.MaxInt}
	for name, tt := range map[string]struct {
		event    ibverbs.EventType
		since    [2]int // Linux whose Soft-RoCE must raise it; other devices must anyway
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
			if !r.device.SoftRoCE() || testdevice.LinuxSince(t, tt.since[0], tt.since[1]) {
				require.True(t, raised)
			}
			t.Logf("%v raised: %v", tt.event, raised)
		})
	}
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

// eventWaiter runs NextEvent in a goroutine.
func eventWaiter(ctx context.Context, c *ibverbs.Device) <-chan error {
	result := make(chan error, 1)
	go func() {
		_, err := c.NextEvent(ctx)
		result <- err
	}()
	return result
}

// A wait ends with its context, and by Close; nothing is left of it.
func TestNextEventEnds(t *testing.T) {
	r := openOwn(t)
	c := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(c)
	_, ok, err := c.PollEvent()
	require.NoError(t, err)
	require.False(t, ok)
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		waits := []<-chan error{eventWaiter(ctx, c), eventWaiter(ctx, c), eventWaiter(limit(t), c)}
		cancel()
		for _, w := range waits[:2] {
			if err := ended(t, w); err != nil { // an event that comes just now wins
				require.ErrorIs(t, err, context.Canceled)
			}
		}
		run(t, "ip", "address", "add", "203.0.113.3/24", "dev", ownNetDev)
		run(t, "ip", "address", "delete", "203.0.113.3/24", "dev", ownNetDev)
		require.NoError(t, ended(t, waits[2]))
	}
	deadline, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	for err == nil { // events that are there may come first
		_, err = c.NextEvent(deadline)
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	pd := must(c.AllocPD())(t)
	waiting := 8
	waits := make(chan error, waiting)
	for range waiting {
		go func() {
			for _, err := range c.Events(context.Background()) {
				if err != nil {
					waits <- err
				}
			}
		}()
	}
	var busy *ibverbs.BusyError
	require.ErrorAs(t, c.Close(), &busy)
	require.NoError(t, pd.Close())
	require.NoError(t, c.Close())
	for range waiting {
		require.ErrorIs(t, ended(t, waits), os.ErrClosed)
	}
	_, _, err = c.PollEvent()
	require.ErrorIs(t, err, os.ErrClosed)
}

// counts is how many events of each type of interest came.
type counts struct {
	sync.Mutex
	of map[ibverbs.EventType]int
}

// read counts the port going up and down, until ctx ends.
func (n *counts) read(ctx context.Context, t testing.TB, c *ibverbs.Device) {
	for ev, err := range c.Events(ctx) {
		switch {
		case errors.Is(err, context.Canceled):
		case err != nil:
			t.Error(err)
		case ev.Device != c:
			t.Errorf("%v has another context", ev)
		case ev.Type == ibverbs.EventPortActive, ev.Type == ibverbs.EventPortError:
			n.Lock()
			n.of[ev.Type]++
			n.Unlock()
		}
	}
}

func (n *counts) copy() map[ibverbs.EventType]int {
	n.Lock()
	defer n.Unlock()
	return maps.Clone(n.of)
}

// Each event goes to one of all that wait, whichever Device of the C object
// they wait on. Another open device has events of its own to compare with.
func TestEachEventOnce(t *testing.T) {
	r := openOwn(t)
	other := must(ibverbs.Open(r.device.Name))(t)
	r.cleanup(other)
	second := new(ibverbs.Device)
	sealed.Open(second.Internals()).InitForeign(r.c.Raw(), func() error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var readers sync.WaitGroup
	want, got := counts{of: map[ibverbs.EventType]int{}}, counts{of: map[ibverbs.EventType]int{}}
	readers.Go(func() { want.read(ctx, t, other) })
	for i := range 8 {
		readers.Go(func() { got.read(ctx, t, []*ibverbs.Device{r.c, second}[i%2]) })
	}
	const times = 10
	for range times {
		run(t, "ip", "link", "set", ownNetDev, "down")
		run(t, "ip", "link", "set", ownNetDev, "up")
	}
	soon(t, "every event has come once", func() bool {
		want, got := want.copy(), got.copy()
		return want[ibverbs.EventPortError] >= times && want[ibverbs.EventPortActive] >= times && maps.Equal(want, got)
	})
	cancel()
	readers.Wait()
	require.Equal(t, want.of, got.of)
	require.NoError(t, second.Close())
}

// Queue pairs are closed while their events are read: no Close waits for ever,
// and what an event names is the queue pair that had it.
func TestCloseWithEvents(t *testing.T) {
	r := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	known := map[*ibverbs.QP]uint32{}
	var readers sync.WaitGroup
	named := 0
	for range 2 {
		readers.Go(func() {
			for ev, err := range r.c.Events(ctx) {
				if err != nil {
					return
				}
				if qp := ev.QP(); qp != nil {
					mu.Lock()
					if known[qp] != ev.Number {
						t.Errorf("%v names QP %d", ev, known[qp])
					}
					named++
					mu.Unlock()
				}
			}
		})
	}
	cq := r.cq(depth, nil)
	for range 25 {
		var qps []*ibverbs.QP
		for range 8 {
			qp := must(r.pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}))(t)
			mu.Lock()
			known[qp] = qp.Num()
			mu.Unlock()
			r.connect(&end{rig: r, qp: qp}, linkTo(qp))
			qps = append(qps, qp)
		}
		var closers sync.WaitGroup
		for _, qp := range qps {
			closers.Go(func() {
				if err := errors.Join(drain(qp), qp.Close()); err != nil {
					t.Error(err)
				}
			})
		}
		done := make(chan error, 1)
		go func() { closers.Wait(); done <- nil }()
		require.NoError(t, ended(t, done))
	}
	cancel()
	readers.Wait()
	t.Logf("%d events named a queue pair before it was closed", named)
}

// Waiting for events costs one descriptor, and no thread.
func TestEventsCostNoThread(t *testing.T) {
	r := open(t)
	_, _, err := r.c.PollEvent()
	require.NoError(t, err)
	before := testdevice.Threads(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waits []<-chan error
	for range 200 {
		waits = append(waits, eventWaiter(ctx, r.c))
	}
	require.Less(t, testdevice.Threads(t), before+50)
	cancel()
	for _, w := range waits {
		if err := ended(t, w); err != nil { // an event of the port's may come
			require.ErrorIs(t, err, context.Canceled)
		}
	}
}
