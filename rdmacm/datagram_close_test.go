package rdmacm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// Whoever sends to a peer that is gone does not hear of it.
func TestDatagramPeerGone(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	_, err := client.PostRecv()
	require.NoError(t, err)
	require.NoError(t, server.Close())
	for range 100 {
		require.NoError(t, client.Send(ctx))
	}
	require.NoError(t, client.Err())
}

// What a device does with a datagram that is larger than its receive differs:
// Soft-RoCE of Linux 6.1 fails the receive, that of 7.2 drops the datagram.
func TestDatagramReceiveTooSmall(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	from, to := memory(t, client), memory(t, server)
	small, err := server.PostRecv(to.Sub(0, 99))
	require.NoError(t, err)
	next, err := server.PostRecv(to.Sub(0, 100))
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx, from.Sub(0, 100)))
	require.NoError(t, client.Send(ctx, from.Sub(0, 50)))
	n, err := small.Wait(ctx)
	t.Log(n, err)
	if err == nil {
		require.Equal(t, 50, n)
		require.NoError(t, server.Err())
		return
	}
	require.ErrorAs(t, err, new(*ibverbs.WCError))
	_, nextErr := next.Wait(ctx)
	require.ErrorIs(t, nextErr, err.(*ibverbs.WCError).Status, "why it was flushed")
	<-server.Done()
	require.Equal(t, err, server.Err())
	require.NoError(t, client.Err())
	require.NoError(t, server.Close())
	require.Equal(t, err, server.Err(), "the first cause stays")
}

// Memory that the end cannot use ends it.
func TestDatagramSendFails(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	pending, err := client.PostRecv()
	require.NoError(t, err)
	foreign := memory(t, server)
	err = client.Send(ctx, foreign.Sub(0, 8))
	var failed *ibverbs.WCError
	require.ErrorAs(t, err, &failed)
	require.Contains(t, []ibverbs.WCStatus{ibverbs.WCLocalProtection, ibverbs.WCLocalQPOperation, ibverbs.WCFlushed}, failed.Status)
	<-client.Done()
	require.Equal(t, err, client.Err())
	_, err = pending.Wait(ctx)
	require.ErrorIs(t, err, failed.Status, "why it was flushed")
	require.ErrorIs(t, client.Send(ctx), failed.Status)
}

func TestDatagramCloseWakesReceives(t *testing.T) {
	const waiters = 8
	d := needDevice(t)
	ctx := bounded(t)
	client, _ := datagrams(t, d.IPv4, nil, nil)
	mr := memory(t, client)
	results := make(chan error, waiters)
	for range waiters {
		r, err := client.PostRecv(mr.All())
		require.NoError(t, err)
		go func() {
			_, err := r.Wait(ctx)
			if _, senderErr := r.Sender(); senderErr == nil {
				t.Error("sender of nothing")
			}
			results <- err
		}()
	}
	require.NoError(t, client.Close())
	for range waiters {
		require.ErrorIs(t, <-results, os.ErrClosed)
	}
	<-client.Done()
	require.Nil(t, mr.Bytes(), "closed with the end")
	require.NoError(t, client.Close(), "again")
	for name, err := range map[string]error{
		"Send": client.Send(ctx), "SendImm": client.SendImm(ctx, 1), "Err": client.Err(),
		"SendTo": client.SendTo(ctx, client.Peer()), "SendImmTo": client.SendImmTo(ctx, client.Peer(), 1),
		"PostRecv": second(client.PostRecv()), "Alloc": second(client.Alloc(1, 0)),
		"Recv": func() error { _, _, err := client.Recv(ctx); return err }(),
	} {
		require.ErrorIs(t, err, os.ErrClosed, name)
		require.ErrorContains(t, err, "datagrams: ", name)
	}
	require.True(t, client.RemoteAddr().IsValid(), "the addresses stay known")
	require.True(t, client.LocalAddr().IsValid())
}

func second[T any](_ T, err error) error { return err }
