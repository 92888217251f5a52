package rdmacm_test

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// bench has what the queue pairs of a test are made with.
type bench struct {
	t  testing.TB
	ip netip.Addr
	pd *ibverbs.PD
	cq *ibverbs.CQ
	mr *ibverbs.MR

	qps sync.Map // of the ids
}

func newBench(t testing.TB, d testdevice.Device) *bench {
	t.Helper()
	b := &bench{t: t, ip: d.IPv4}
	device := find(t, d.Name)
	require.NotNil(t, device)
	var err error
	b.pd, err = device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.pd.Close()) })
	ch, err := device.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	b.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: 256, Channel: ch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.cq.Close()) })
	b.mr, err = b.pd.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.mr.Close()) })
	t.Cleanup(func() {
		b.qps.Range(func(id, _ any) bool {
			require.NoError(t, id.(*rdmacm.HandledID).Shutdown(context.Background()))
			return true
		})
	})
	return b
}

// createQP gives an id a queue pair with a receive posted.
func (b *bench) createQP(id *rdmacm.HandledID) error {
	qp, err := id.CreateQP(b.pd, ibverbs.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return err
	}
	b.qps.Store(id, qp)
	batch, err := ibverbs.NewRecvBatch(1, 1)
	if err != nil {
		return err
	}
	if err := batch.Recv(1, b.mr.Sub(0, 64)); err != nil {
		return err
	}
	_, err = qp.PostRecv(batch)
	return err
}

// send sends a message of the bench's memory.
func (b *bench) send(id *rdmacm.HandledID) {
	b.t.Helper()
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(b.t, err)
	require.NoError(b.t, batch.Send(2, ibverbs.SendSignaled, b.mr.Sub(64, 64)))
	qp, _ := b.qps.Load(id)
	_, err = qp.(*ibverbs.QP).PostSend(batch)
	require.NoError(b.t, err)
}

// dialing is the handler of an id that connects; the rest goes to then.
func (b *bench) dialing(then rdmacm.Handler) rdmacm.Handler {
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			return ev.ID.ResolveRoute(time.Second)
		case rdmacm.EventRouteResolved:
			if err := b.createQP(id); err != nil {
				return err
			}
			return ev.ID.Connect(rdmacm.ConnParam{RetryCount: 7, PeerRNRRetryCount: 7})
		}
		return then(id, ev)
	}
}

// accepting is the handler of an id that listens; the rest goes to then.
func (b *bench) accepting(then rdmacm.Handler) rdmacm.Handler {
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		if ev.Type != rdmacm.EventConnectRequest {
			return then(id, ev)
		}
		if err := b.createQP(id); err != nil {
			return err
		}
		return ev.ID.Accept(rdmacm.ConnParam{PeerRNRRetryCount: 7})
	}
}

// handled makes an id, which is over with the test.
func handled(t testing.TB, handler rdmacm.Handler) *rdmacm.HandledID {
	t.Helper()
	id, err := rdmacm.NewHandledID(rdmacm.PortSpaceTCP, handler)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, id.Shutdown(ctx))
	})
	return id
}

// listen makes an id that listens.
func (b *bench) listen(backlog int, handler rdmacm.Handler) *rdmacm.HandledID {
	b.t.Helper()
	id := handled(b.t, handler)
	require.NoError(b.t, id.ID().BindAddr(netip.AddrPortFrom(b.ip, 0)))
	require.NoError(b.t, id.Listen(backlog))
	return id
}

// dial makes an id that connects to another.
func (b *bench) dial(to *rdmacm.HandledID, handler rdmacm.Handler) *rdmacm.HandledID {
	b.t.Helper()
	id := handled(b.t, b.dialing(handler))
	resolve(b.t, id, to.ID().LocalAddr())
	return id
}

// resolve begins to make an id connect.
func resolve(t testing.TB, id *rdmacm.HandledID, to netip.AddrPort) {
	t.Helper()
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, to, time.Second))
}

// happening is an event that a handler was given.
type happening struct {
	id *rdmacm.HandledID
	ev *rdmacm.Event
}

// record returns a handler that notes what it is given, and ends ids that are
// over.
func record() (rdmacm.Handler, chan happening) {
	seen := make(chan happening, 4096)
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		seen <- happening{id, ev}
		return ev.Err()
	}, seen
}

// await returns what happens next, which must be of the type.
func await(t testing.TB, seen <-chan happening, want rdmacm.EventType) happening {
	t.Helper()
	h := take(t, seen, want.String())
	require.Equal(t, want, h.ev.Type, "%v, status %d", h.ev.Type, h.ev.Status)
	return h
}

// take returns what comes next.
func take[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		require.FailNow(t, "does not come", what)
	}
	return v
}
