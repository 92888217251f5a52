package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Clients are served at the same time, until the server's context ends.
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
			conn, err := req.Accept(ctx, nil)
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
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, client.Close()) }()
	}
	together.Wait()
	require.Empty(t, served)
	stop()
	require.NoError(t, take(t, served, "the end"))
	require.Zero(t, running.Load(), "the handlers have returned")
}

// A handler that does not answer refuses.
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
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), &rdmacm.Config{PrivateData: []byte(data)})
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, d.IPv4, take(t, peers, "a client").Addr(), "known after the answer")
	}
	stop()
	require.NoError(t, take(t, served, "the end"))
}

// When nobody can connect any more, those who serve are told.
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
		_, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
		dialed <- err
	}()
	take(t, serves, "the client")
	require.NoError(t, ln.Close())
	require.ErrorIs(t, take(t, served, "the end"), os.ErrClosed)
	require.ErrorIs(t, take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
	require.ErrorIs(t, ln.Serve(ctx, func(context.Context, *rdmacm.Request) {}), os.ErrClosed)
	require.ErrorIs(t, ln.Serve(ctx, nil), syscall.EINVAL)
	var none context.Context
	require.ErrorIs(t, ln.Serve(none, func(context.Context, *rdmacm.Request) {}), syscall.EINVAL)
	require.Empty(t, ibverbs.OpenObjects())
}
