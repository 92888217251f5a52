package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

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
