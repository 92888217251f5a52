// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// Some devices never complete what is posted in the error state. There, calls
// that wait still return when the connection has ended, and messages that came
// before are received.
func TestLateRequestsNeverComplete(t *testing.T) {
	if cmtest.SharesPool() {
		t.Skip("makes its own pool")
	}
	if !testdevice.LimitedTo(t, "late=1") {
		return
	}
	d := needDevice(t)

	t.Run("send", func(t *testing.T) {
		ctx := bounded(t)
		client, server := connect(t, d.IPv4, nil, nil)
		require.NoError(t, server.QP().SetError())
		sent := inBackground(func() error { return server.Send(ctx) })
		cmtest.Soon(t, "the send is not posted", func() bool { return rdmacm.InFlight(server) == 1 })
		require.NoError(t, client.Close())
		err := <-sent
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, server.Err(), err)
	})
	t.Run("pool", func(t *testing.T) {
		ctx := bounded(t)
		pool := newPool(t, &rdmacm.Pool{Sends: 64, Receives: 8, MessageSize: 64})
		client, server := connect(t, d.IPv4, nil, &rdmacm.Config{Queues: pool})
		mr, err := server.Alloc(64, ibverbs.AccessLocalWrite)
		require.NoError(t, err)
		require.NoError(t, client.Send(ctx))
		require.NoError(t, client.Close())
		_, err = server.Recv(ctx, mr.All())
		require.NoError(t, err)
		_, err = server.Recv(ctx, mr.All())
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Requests are given up only if the queue pair is in the error state: otherwise
// the device may still use their memory. A queue pair that was closed has none.
func TestRequestsAreGivenUpInTheErrorState(t *testing.T) {
	if cmtest.SharesPool() {
		t.Skip("with a pool, Close moves the queue pair to the error state before it closes it")
	}
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	rdmacm.HangUp(client)
	require.True(t, rdmacm.MayAbandon(client))
	<-server.Done()
	require.NoError(t, client.Close())

	client, _ = connect(t, d.IPv4, nil, nil)
	require.NoError(t, client.Close())
	rdmacm.HangUp(client) // the peer's end was under way
	require.False(t, rdmacm.MayAbandon(client))
}

// What the device has completed is not given up, even if the goroutine that has
// taken the completion has not handed it out yet.
func TestCompletedRequestsAreNotGivenUp(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	ctx := bounded(t)
	client, server := connect(t, d.IPv4, nil, nil)
	mr, err := server.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	received, err := server.PostRecv(mr.All())
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx))
	release, err := rdmacm.HoldCompletions(ctx, server)
	require.NoError(t, err)
	require.NoError(t, client.Close())
	<-server.Done()
	abandoned := make(chan struct{})
	go func() {
		defer close(abandoned)
		rdmacm.Abandon(server)
	}()
	cmtest.Soon(t, "the call waits for the poller, or is over", func() bool {
		select {
		case <-abandoned:
			return true
		default:
			return rdmacm.WantsPoller(server)
		}
	})
	release()
	<-abandoned
	_, err = received.Wait(ctx)
	require.NoError(t, err)
}

// A goroutine that waits for completions while the device has none gives way.
func TestRequestsAreGivenUpWhileAGoroutineWaits(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	ctx := bounded(t)
	_, server := connect(t, d.IPv4, nil, nil)
	mr, err := server.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	first, err := server.PostRecv(mr.Sub(0, 8))
	require.NoError(t, err)
	second, err := server.PostRecv(mr.Sub(8, 8))
	require.NoError(t, err)
	waits := []<-chan error{
		inBackground(func() error { _, err := first.Wait(ctx); return err }),
		inBackground(func() error { _, err := second.Wait(ctx); return err }),
	}
	cmtest.Soon(t, "no goroutine polls, or none waits for that", func() bool { return rdmacm.HasPoller(server) && rdmacm.WantsPoller(server) })
	rdmacm.Abandon(server)
	for _, w := range waits {
		_ = cmtest.Take(t, w, "the end of a request") // no error, as the connection is up
	}
}
