// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/handled"
)

const maxBacklogFile = "/proc/sys/net/rdma_ucm/max_backlog"

// setMaxBacklog sets the system's limit for backlogs during the test.
func setMaxBacklog(t *testing.T, value string) {
	t.Helper()
	before, err := os.ReadFile(maxBacklogFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(maxBacklogFile, []byte(value), 0o644))
	t.Cleanup(func() { require.NoError(t, os.WriteFile(maxBacklogFile, before, 0o644)) })
}

// As many requests as the backlog wait to be read from the channel, and no more
// than the system permits. Further requests get no answer, and their peers ask
// again.
func TestBacklogOfID(t *testing.T) {
	d := testdevice.Needs(t, testdevice.Guest) // the test sets the guest's limit
	for _, tt := range []struct {
		name, max     string
		backlog, wait int
	}{
		{"of the id", "64", 2, 2},
		{"of the system", "1", 8, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			setMaxBacklog(t, tt.max)
			b := cmtest.NewBench(t, d)
			ln := newEnd(t)
			require.NoError(t, ln.id.BindAddr(netip.AddrPortFrom(d.IPv4, 0)))
			require.NoError(t, ln.id.Listen(tt.backlog))
			const dials = 3
			note, seen := cmtest.Record()
			asked := make(chan error, dials)
			dialing := b.Dialing(note)
			for range dials {
				cmtest.Resolve(t, cmtest.Handled(t, func(id *handled.ID, ev *rdmacm.Event) error {
					err := dialing(id, ev)
					if ev.Type == rdmacm.EventRouteResolved {
						asked <- err
					}
					return err
				}), ln.id.LocalAddr())
				require.NoError(t, cmtest.Take(t, asked, "the request"))
			}
			connect(t, d.IPv4, nil, nil) // comes after all of them
			waiting := 0
			for ; waiting < dials; waiting++ {
				if !refuseNow(t, ln.ch) {
					break
				}
			}
			require.Equal(t, tt.wait, waiting)
			for range tt.wait {
				cmtest.Await(t, seen, rdmacm.EventRejected)
			}
			start := time.Now()
			for range dials - tt.wait {
				refuse(t, next(t, ln.ch, rdmacm.EventConnectRequest))
				cmtest.Await(t, seen, rdmacm.EventRejected)
				t.Logf("asked again after %v", time.Since(start))
			}
		})
	}
}

// refuseNow refuses a request if there is one.
func refuseNow(t *testing.T, ch *rdmacm.EventChannel) bool {
	t.Helper()
	ev, ok, err := ch.Poll()
	require.NoError(t, err)
	if ok {
		refuse(t, ev)
	}
	return ok
}

func refuse(t *testing.T, ev *rdmacm.Event) {
	t.Helper()
	require.Equal(t, rdmacm.EventConnectRequest, ev.Type)
	require.NoError(t, ev.ID.Reject(nil))
	require.NoError(t, ev.ID.Close())
}

// No program serves one listener, and the Setup of a connection takes long.
// They hold up no other listener or connection.
func TestSlowConsumersDelayOnlyThemselves(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	unserved := listenOn(t, d.IPv4)
	refused := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, unserved.Addr().String(), inPool(nil))
		refused <- err
	}()
	slow := listenOn(t, d.IPv4)
	inside, leave := make(chan struct{}), make(chan struct{})
	result := acceptOne(ctx, slow, &rdmacm.Config{Setup: func(*rdmacm.Conn) error {
		close(inside)
		<-leave
		return nil
	}})
	dialed := make(chan accepted, 1)
	go func() {
		conn, err := rdmacm.Dial(ctx, slow.Addr().String(), inPool(nil))
		dialed <- accepted{conn: conn, err: err}
	}()
	cmtest.Take(t, inside, "Setup")
	soon(t, "a request waits", func() bool { return rdmacm.Waiting(unserved) == 1 })
	connect(t, d.IPv4, nil, nil)
	client, server := connect(t, d.IPv4, nil, nil)
	require.NoError(t, client.Close())
	cmtest.Take(t, server.Done(), "the end")
	require.Empty(t, dialed)
	close(leave)
	for _, end := range []<-chan accepted{result, dialed} {
		a := cmtest.Take(t, end, "an end of the slow connection")
		require.NoError(t, a.err)
		defer func() { require.NoError(t, a.conn.Close()) }()
	}
	require.NoError(t, unserved.Close())
	require.ErrorIs(t, cmtest.Take(t, refused, "a refusal"), syscall.ECONNREFUSED)
}

// Clients are served at the same time until the server's context ends.
func TestServe(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	const clients = 3
	var together sync.WaitGroup
	together.Add(clients)
	var running atomic.Int32
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() {
		served <- ln.Serve(serving, func(ctx context.Context, req *rdmacm.Request) {
			running.Add(1)
			defer running.Add(-1)
			conn, err := req.Accept(ctx, inPool(nil))
			if err != nil {
				t.Error(err)
				return
			}
			together.Done()
			if err := conn.Wait(ctx); err == nil {
				t.Error("the clients stay")
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}()
	for range clients {
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		require.NoError(t, err)
		defer func() { require.NoError(t, client.Close()) }()
	}
	together.Wait()
	require.Empty(t, served)
	stop()
	require.NoError(t, cmtest.Take(t, served, "the end"))
	require.Zero(t, running.Load(), "the handlers have returned")
}

// A request that the handler does not answer is refused.
func TestServeRefuses(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	serving, stop := context.WithCancel(ctx)
	peers, served := make(chan netip.AddrPort, 2), make(chan error, 1)
	go func() {
		served <- ln.Serve(serving, func(_ context.Context, req *rdmacm.Request) {
			if string(req.PrivateData()[:2]) == "no" {
				if err := req.Reject([]byte("why not")); err != nil {
					t.Error(err)
				}
			}
			peers <- req.RemoteAddr()
		})
	}()
	for _, data := range []string{"no", "??"} {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{PrivateData: []byte(data)}))
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, d.IPv4, cmtest.Take(t, peers, "a client").Addr(), "known after the answer")
	}
	stop()
	require.NoError(t, cmtest.Take(t, served, "the end"))
}

// When the listener is closed, the handlers' context ends.
func TestServeUntilClosed(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, d.IPv4.String()+":0", nil)
	require.NoError(t, err)
	serves, served := make(chan struct{}), make(chan error, 1)
	go func() {
		served <- ln.Serve(ctx, func(ctx context.Context, _ *rdmacm.Request) {
			close(serves)
			<-ctx.Done()
		})
	}()
	dialed := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		dialed <- err
	}()
	cmtest.Take(t, serves, "the client")
	require.NoError(t, ln.Close())
	require.ErrorIs(t, cmtest.Take(t, served, "the end"), os.ErrClosed)
	require.ErrorIs(t, cmtest.Take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
	require.ErrorIs(t, ln.Serve(ctx, func(context.Context, *rdmacm.Request) {}), os.ErrClosed)
	require.ErrorIs(t, ln.Serve(ctx, nil), syscall.EINVAL)
	var none context.Context
	require.ErrorIs(t, ln.Serve(none, func(context.Context, *rdmacm.Request) {}), syscall.EINVAL)
	require.Empty(t, ibverbs.OpenObjects())
}

// A request that is accepted without a config gets the listener's config.
func TestListenConfigForConnections(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), &rdmacm.ListenConfig{Config: rdmacm.Config{MessageSize: 8}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	for _, config := range []*rdmacm.Config{nil, {MessageSize: 1}, {}} {
		var server *rdmacm.Conn
		accepted := inBackground(func() error {
			req, err := ln.Accept(ctx)
			if err == nil {
				server, err = req.Accept(ctx, config)
			}
			return err
		})
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(nil))
		require.NoError(t, err)
		require.NoError(t, <-accepted)
		out := alloc(t, client, 8)
		if config == nil {
			require.NoError(t, client.Send(ctx, out.All()))
			m, err := server.Receive(ctx)
			require.NoError(t, err)
			require.Len(t, m.Data, 8)
		} else if config.MessageSize == 0 {
			_, err := server.Receive(ctx)
			require.ErrorContains(t, err, "Config.MessageSize is 0")
		}
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}
