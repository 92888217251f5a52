// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// needDevice returns the device to test with, and fails the test if it leaves
// anything behind.
func needDevice(t *testing.T) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	_, err := rdmacm.Devices() // which stay open
	require.NoError(t, err)
	testdevice.NoLeaks(t)
	return d
}

// ends makes the two ends of one exchange.
func ends(t *testing.T, client, server *End) {
	t.Helper()
	d := needDevice(t)
	for _, end := range []*End{client, server} {
		if end.Count > 0 {
			d.Have(t, testdevice.MTU(end.Size))
		}
	}
	d.Have(t, testdevice.Datagrams)
	ctx := t.Context()
	ln, err := rdmacm.ListenDatagram(ctx, d.IPv4.String()+":0", nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	accepted := make(chan error, 1)
	go func() {
		req, err := ln.Accept(ctx)
		if err == nil {
			_, err = req.Accept(ctx, &rdmacm.DatagramConfig{RecvQueue: server.Count, Setup: server.SetupReceives})
		}
		accepted <- err
	}()
	_, err = rdmacm.DialDatagram(ctx, ln.Addr().String(), &rdmacm.DatagramConfig{RecvQueue: client.Count, Setup: client.SetupReceives})
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	t.Cleanup(func() {
		require.NoError(t, client.Conn.Close())
		require.NoError(t, server.Conn.Close())
	})
}

func TestExchange(t *testing.T) {
	client, server := &End{Count: 20, Size: 1024}, &End{Count: 20, Size: 1024}
	ends(t, client, server)
	ctx := t.Context()
	require.NoError(t, client.Send(ctx, client.Conn.Peer()))
	from, err := server.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, client.Conn.QP().Num(), from.QPNum)
	require.NoError(t, server.Send(ctx, from))
	from, err = client.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, server.Conn.QP().Num(), from.QPNum)
}

func TestNoMessages(t *testing.T) {
	client, server := &End{Size: 1}, &End{Size: 1 << 20}
	ends(t, client, server)
	require.NoError(t, client.Send(t.Context(), client.Conn.Peer()))
	from, err := server.Receive(t.Context())
	require.NoError(t, err)
	require.Zero(t, from)
}

// A message of another program has other immediate data, or none.
func TestForeignMessages(t *testing.T) {
	client, server := &End{Count: 2, Size: 64}, &End{Count: 2, Size: 64}
	ends(t, client, server)
	ctx := t.Context()
	require.NoError(t, client.Conn.SendImm(ctx, 7, client.memory.Sub(0, 9)))
	require.NoError(t, client.Conn.Send(ctx, client.memory.Sub(0, 10)))
	_, err := server.Receive(ctx)
	require.ErrorContains(t, err, "message of 9 bytes from QP ")
	require.ErrorContains(t, err, "its immediate data is 7, not the QP number")
	server.receives = server.receives[1:]
	_, err = server.Receive(ctx)
	require.ErrorContains(t, err, "message of 10 bytes from QP ")
}

func TestReceiveIsCanceled(t *testing.T) {
	client, server := &End{Count: 1, Size: 64}, &End{Count: 1, Size: 64}
	ends(t, client, server)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := server.Receive(gone)
	require.ErrorIs(t, err, context.Canceled)
}

func TestTooLarge(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams)
	e := &End{Count: 1, Size: MaxSize + 1}
	_, err := rdmacm.DialDatagram(t.Context(), d.IPv4.String()+":7198", &rdmacm.DatagramConfig{Setup: e.SetupReceives})
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	require.ErrorContains(t, err, "messages of 4097 bytes: the port's MTU allows ")
}
