// SPDX-License-Identifier: Apache-2.0

package cmtest

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
	"github.com/verbena-go/verbena/rdmacm/handled"
)

// Bench has what the queue pairs of a test are made with.
type Bench struct {
	t  testing.TB
	IP netip.Addr
	PD *ibverbs.PD
	CQ *ibverbs.CQ
	MR *ibverbs.MR

	qps sync.Map // of the ids
}

// NewBench returns a bench for a device.
func NewBench(t testing.TB, d testdevice.Device) *Bench {
	t.Helper()
	b := &Bench{t: t, IP: d.IPv4}
	device := Find(t, d.Name)
	require.NotNil(t, device)
	var err error
	b.PD, err = device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.PD.Close()) })
	ch, err := device.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	b.CQ, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: 256, Channel: ch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.CQ.Close()) })
	b.MR, err = b.PD.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.MR.Close()) })
	t.Cleanup(func() {
		b.qps.Range(func(id, _ any) bool {
			require.NoError(t, id.(*handled.ID).Shutdown(context.Background()))
			return true
		})
	})
	return b
}

// CreateQP gives an id a queue pair with a receive posted.
func (b *Bench) CreateQP(id *handled.ID) error {
	qp, err := id.CreateQP(b.PD, ibverbs.QPConfig{SendCQ: b.CQ, RecvCQ: b.CQ, SendQueue: 1, RecvQueue: 1, SendSegments: 1, RecvSegments: 1})
	if err != nil {
		return err
	}
	b.qps.Store(id, qp)
	batch, err := ibverbs.NewRecvBatch(1, 1)
	if err != nil {
		return err
	}
	if err := batch.Recv(1, b.MR.Sub(0, 64)); err != nil {
		return err
	}
	_, err = qp.PostRecv(batch)
	return err
}

// Send sends a message of the bench's memory.
func (b *Bench) Send(id *handled.ID) {
	b.t.Helper()
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(b.t, err)
	require.NoError(b.t, batch.Send(2, ibverbs.SendSignaled, b.MR.Sub(64, 64)))
	qp, _ := b.qps.Load(id)
	_, err = qp.(*ibverbs.QP).PostSend(batch)
	require.NoError(b.t, err)
}

// Dialing is the handler of an id that connects; the rest goes to then.
func (b *Bench) Dialing(then handled.Handler) handled.Handler {
	return func(id *handled.ID, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			return ev.ID.ResolveRoute(time.Second)
		case rdmacm.EventRouteResolved:
			if err := b.CreateQP(id); err != nil {
				return err
			}
			return ev.ID.Connect(rdmacm.ConnParam{RetryCount: 7, PeerRNRRetryCount: 7})
		}
		return then(id, ev)
	}
}

// Accepting is the handler of an id that listens; the rest goes to then.
func (b *Bench) Accepting(then handled.Handler) handled.Handler {
	return func(id *handled.ID, ev *rdmacm.Event) error {
		if ev.Type != rdmacm.EventConnectRequest {
			return then(id, ev)
		}
		if err := b.CreateQP(id); err != nil {
			return err
		}
		return ev.ID.Accept(rdmacm.ConnParam{PeerRNRRetryCount: 7})
	}
}

// Handled makes an id, which is over with the test.
func Handled(t testing.TB, handler handled.Handler) *handled.ID {
	t.Helper()
	id, err := handled.New(rdmacm.PortSpaceTCP, handler)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		require.NoError(t, id.Shutdown(ctx))
	})
	return id
}

// Listen makes an id that listens.
func (b *Bench) Listen(backlog int, handler handled.Handler) *handled.ID {
	b.t.Helper()
	id := Handled(b.t, handler)
	require.NoError(b.t, id.ID().BindAddr(netip.AddrPortFrom(b.IP, 0)))
	require.NoError(b.t, id.Listen(backlog))
	return id
}

// Dial makes an id that connects to another.
func (b *Bench) Dial(to *handled.ID, handler handled.Handler) *handled.ID {
	b.t.Helper()
	id := Handled(b.t, b.Dialing(handler))
	Resolve(b.t, id, to.ID().LocalAddr())
	return id
}

// Resolve starts to resolve an address, which is the first step of connecting
// an id.
func Resolve(t testing.TB, id *handled.ID, to netip.AddrPort) {
	t.Helper()
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, to, time.Second))
}

// Happening is an event that a handler was given.
type Happening struct {
	ID    *handled.ID
	Event *rdmacm.Event
}

// Record returns a handler that notes what it is given, and ends ids that are
// over.
func Record() (handled.Handler, chan Happening) {
	seen := make(chan Happening, 4096)
	return func(id *handled.ID, ev *rdmacm.Event) error {
		seen <- Happening{id, ev}
		return ev.Err()
	}, seen
}

// Await returns what happens next, which must be of the type.
func Await(t testing.TB, seen <-chan Happening, want rdmacm.EventType) Happening {
	t.Helper()
	h := Take(t, seen, want.String())
	require.Equal(t, want, h.Event.Type, "%v, status %d", h.Event.Type, h.Event.Status)
	return h
}

// Keep returns a handler that notes what it is given and ends nothing.
func Keep() (handled.Handler, chan Happening) {
	note, seen := Record()
	return func(id *handled.ID, ev *rdmacm.Event) error {
		_ = note(id, ev)
		return nil
	}, seen
}
