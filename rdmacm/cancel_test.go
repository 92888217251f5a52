package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// countdown is a context that ends when somebody looks at it for the nth time.
// Each step that waits looks at least once.
type countdown struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
}

func newCountdown(t *testing.T, n int) *countdown {
	c := new(countdown)
	c.Context, c.cancel = context.WithCancel(bounded(t))
	t.Cleanup(c.cancel)
	c.left.Store(int64(n))
	return c
}

func (c *countdown) tick() {
	if c.left.Add(-1) == 0 {
		c.cancel()
	}
}

func (c *countdown) Done() <-chan struct{} { c.tick(); return c.Context.Done() }
func (c *countdown) Err() error            { c.tick(); return c.Context.Err() }

// ended reports whether the count was reached.
func (c *countdown) ended() bool { return c.Context.Err() != nil }

func TestCancelDialAtEachStage(t *testing.T) {
	d := needDevice(t)
	for _, mode := range modes[:2] {
		t.Run(mode.name, func(t *testing.T) {
			ln := listenOn(t, d.IPv4)
			stop := serve(t, ln)
			defer stop()
			canceled := 0
			for n := 1; ; n++ {
				ctx := newCountdown(t, n)
				conn, err := rdmacm.Dial(ctx, ln.Addr().String(), &rdmacm.Config{ManualQP: mode.manualClient})
				if err == nil {
					require.NoError(t, conn.Close())
				} else {
					require.ErrorIs(t, err, context.Canceled)
					canceled++
				}
				if !ctx.ended() {
					break
				}
			}
			t.Logf("canceled %d times", canceled)
			require.GreaterOrEqual(t, canceled, 3)
		})
	}
}

// serve accepts connections and drops them when the peer does.
func serve(t *testing.T, ln *rdmacm.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serveOne := func(req *rdmacm.Request) {
		// The dialer may have given up, which CM may notice only after a minute.
		conn, err := req.Accept(ctx, nil)
		if err != nil {
			return
		}
		select {
		case <-conn.Done():
		case <-ctx.Done():
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	serving.Go(func() {
		for {
			req, err := ln.Accept(ctx)
			if err != nil {
				return
			}
			serving.Go(func() { serveOne(req) })
		}
	})
	return func() { cancel(); serving.Wait() }
}

func TestCancelAcceptAtEachStage(t *testing.T) {
	d := needDevice(t)
	for _, mode := range []int{0, 2} {
		t.Run(modes[mode].name, func(t *testing.T) {
			ln := listenOn(t, d.IPv4)
			canceled := 0
			for n := 1; ; n++ {
				dialed := make(chan error, 1)
				go func() {
					conn, err := rdmacm.Dial(bounded(t), ln.Addr().String(), nil)
					if conn != nil {
						<-conn.Done()
						err = errors.Join(conn.Err(), conn.Close())
					}
					dialed <- err
				}()
				req, err := ln.Accept(bounded(t))
				require.NoError(t, err)
				ctx := newCountdown(t, n)
				conn, err := req.Accept(ctx, &rdmacm.Config{ManualQP: modes[mode].manualServer})
				if err == nil {
					require.NoError(t, conn.Close())
				} else {
					require.ErrorIs(t, err, context.Canceled)
					canceled++
				}
				err = <-dialed
				requireGone(t, err)
				if !ctx.ended() {
					break
				}
			}
			t.Logf("canceled %d times", canceled)
			require.GreaterOrEqual(t, canceled, 1)
		})
	}
}

// requireGone checks what a dialer hears of a peer that gives up: before,
// while, or after librdmacm answers the peer's acceptance.
func requireGone(t *testing.T, err error) {
	t.Helper()
	failed, ok := errors.AsType[*rdmacm.EventError](err)
	require.Truef(t, errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		ok && failed.Type == rdmacm.EventConnectError, "%v", err)
}

func TestContextEndsWaitForRequest(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := ln.Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, ln.Close())
}

func TestEndedContext(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	stop := serve(t, ln)
	defer stop()
	client, err := rdmacm.Dial(bounded(t), ln.Addr().String(), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more time")
	cancel(cause)
	_, err = rdmacm.Dial(ctx, ln.Addr().String(), nil)
	require.ErrorIs(t, err, cause)
	_, err = rdmacm.Listen(ctx, ":0", nil)
	require.ErrorIs(t, err, cause)
	_, err = client.Recv(ctx)
	require.ErrorIs(t, err, cause)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, client.Err(), "the connection does not end with a context")
}

// A canceled wait gives up neither the receive nor the others' turn.
func TestCanceledWaitPassesTheLead(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	mr := alloc(t, server, 64)
	first, err := server.PostRecv(mr.Sub(0, 8))
	require.NoError(t, err)
	second, err := server.PostRecv(mr.Sub(8, 8))
	require.NoError(t, err)
	third, err := server.PostRecv(mr.Sub(16, 8))
	require.NoError(t, err)

	ctx := bounded(t)
	leading, stopLeading := context.WithCancel(ctx)
	led := make(chan error, 1)
	go func() {
		_, err := first.Wait(leading)
		led <- err
	}()
	require.Eventually(t, func() bool { return rdmacm.HasLeader(server) }, patience, time.Microsecond)
	followed := make(chan error, 2)
	for _, r := range []*rdmacm.Receive{second, third} {
		each(followed, func() error {
			_, err := r.Wait(ctx)
			return err
		})
	}
	stopLeading()
	require.ErrorIs(t, <-led, context.Canceled)
	for range 3 {
		require.NoError(t, client.Send(ctx))
	}
	require.NoError(t, <-followed)
	require.NoError(t, <-followed)
	_, err = first.Wait(ctx) // whose message the others have found
	require.NoError(t, err)
}

// What a canceled send posted keeps its place in the queue until it is done.
func TestCanceledSendKeepsItsPlace(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 1}, nil)
	ctx := bounded(t)
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	// The peer has no receive, so the first send waits for that, and the
	// others for the first one's place.
	for range 3 {
		require.ErrorIs(t, client.Send(short()), context.DeadlineExceeded)
	}
	received, err := server.PostRecv()
	require.NoError(t, err)
	_, err = received.Wait(ctx)
	require.NoError(t, err)
	another, err := server.PostRecv()
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx))
	_, err = another.Wait(ctx)
	require.NoError(t, err)
}
