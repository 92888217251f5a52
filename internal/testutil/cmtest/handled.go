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

// Bench has the objects that the queue pairs of a test share.
type Bench struct {
	t  testing.TB
	IP netip.Addr
	PD *ibverbs.PD
	CQ *ibverbs.CQ
	MR *ibverbs.MR

	qps sync.Map // queue pairs by ID
}

// NewBench returns a bench for the device d. Its objects are closed at the end
// of the test.
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

// CreateQP creates a queue pair for an ID and posts a receive to it.
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

// Send sends a message of 64 bytes from the bench's memory.
func (b *Bench) Send(id *handled.ID) {
	b.t.Helper()
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(b.t, err)
	require.NoError(b.t, batch.Send(2, ibverbs.SendSignaled, b.MR.Sub(64, 64)))
	qp, _ := b.qps.Load(id)
	_, err = qp.(*ibverbs.QP).PostSend(batch)
	require.NoError(b.t, err)
}

// Dialing returns a handler for an ID that connects. It handles the events up
// to the connection request, and passes the others to then.
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

// Accepting returns a handler for an ID that listens. It accepts connection
// requests, and passes other events to then.
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

// Handled returns an ID with a handler, which is shut down at the end of the
// test.
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

// Listen returns an ID that listens on the bench's address.
func (b *Bench) Listen(backlog int, handler handled.Handler) *handled.ID {
	b.t.Helper()
	id := Handled(b.t, handler)
	require.NoError(b.t, id.ID().BindAddr(netip.AddrPortFrom(b.IP, 0)))
	require.NoError(b.t, id.Listen(backlog))
	return id
}

// Dial returns an ID that connects to the address of another ID.
func (b *Bench) Dial(to *handled.ID, handler handled.Handler) *handled.ID {
	b.t.Helper()
	id := Handled(b.t, b.Dialing(handler))
	Resolve(b.t, id, to.ID().LocalAddr())
	return id
}

// Resolve starts to resolve an address for an ID, which is the first step of a
// connection.
func Resolve(t testing.TB, id *handled.ID, to netip.AddrPort) {
	t.Helper()
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, to, time.Second))
}

// Happening is a call of a handler.
type Happening struct {
	ID    *handled.ID
	Event *rdmacm.Event
}

// Record returns a handler that sends its arguments to the channel. After an
// event that reports an error, the handler returns the error, which ends the
// ID.
func Record() (handled.Handler, chan Happening) {
	seen := make(chan Happening, 4096)
	return func(id *handled.ID, ev *rdmacm.Event) error {
		seen <- Happening{id, ev}
		return ev.Err()
	}, seen
}

// Await receives the next call of a handler, whose event must have the type
// want.
func Await(t testing.TB, seen <-chan Happening, want rdmacm.EventType) Happening {
	t.Helper()
	h := Take(t, seen, want.String())
	require.Equal(t, want, h.Event.Type, "%v, status %d", h.Event.Type, h.Event.Status)
	return h
}

// Keep returns a handler that sends its arguments to the channel, and never
// ends an ID.
func Keep() (handled.Handler, chan Happening) {
	note, seen := Record()
	return func(id *handled.ID, ev *rdmacm.Event) error {
		_ = note(id, ev)
		return nil
	}, seen
}
