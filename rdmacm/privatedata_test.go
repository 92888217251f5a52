// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// filled returns private data of length n. Neighbouring bytes differ, and none
// is 0, which is the padding.
func filled(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i%255 + 1)
	}
	return data
}

// knock sends a request from a new id to the listener, with n bytes of private
// data. All requests use the same two channels.
func knock(t *testing.T, ln *end, ch *rdmacm.EventChannel, n int) (client *rdmacm.ID, ev *rdmacm.Event) {
	t.Helper()
	client, err := ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.NoError(t, client.ResolveAddr(netip.AddrPort{}, ln.id.LocalAddr(), time.Second))
	next(t, ch, rdmacm.EventAddrResolved)
	require.NoError(t, client.ResolveRoute(time.Second))
	next(t, ch, rdmacm.EventRouteResolved)
	if n == maxRequestData {
		err := client.Connect(rdmacm.ConnParam{QPNum: newQP(), PrivateData: filled(n + 1)})
		requireTooLong(t, err, "private data has 57 bytes, but this device's connection request carries at most 56")
	}
	require.NoError(t, client.Connect(rdmacm.ConnParam{QPNum: newQP(), PrivateData: filled(n)}))
	ev = next(t, ln.ch, rdmacm.EventConnectRequest)
	require.Equal(t, padded(filled(n), maxRequestData), ev.PrivateData, "request, %d bytes", n)
	return client, ev
}

func requireTooLong(t *testing.T, err error, text string) {
	t.Helper()
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, text)
}

// Requests, answers and rejections have private data of every length. The peer
// gets what was sent, followed by zeros. One byte too many is refused before it
// is sent, which changes nothing: the longest data is sent after that.
func TestPrivateDataOfEveryLength(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.InfiniBand)
	noKernelLeaks(t, d)
	ln, ch := listening(t, d.IPv4), newChannel(t)
	for _, tt := range []struct {
		name   string
		max    int
		answer func(id *rdmacm.ID, data []byte) error
		event  rdmacm.EventType
		text   string
	}{
		{
			"rejections", maxRejectData, (*rdmacm.ID).Reject, rdmacm.EventRejected,
			"private data has 149 bytes, but this device's rejection carries at most 148",
		},
		{
			"acceptances", maxReplyData, func(id *rdmacm.ID, data []byte) error {
				return id.Accept(rdmacm.ConnParam{QPNum: newQP(), PrivateData: data})
			}, rdmacm.EventConnectResponse,
			"private data has 197 bytes, but this device's acceptance carries at most 196",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for n := 0; n <= tt.max; n++ {
				client, request := knock(t, ln, ch, n%(maxRequestData+1))
				if n == tt.max {
					requireTooLong(t, tt.answer(request.ID, filled(n+1)), tt.text)
				}
				require.NoError(t, tt.answer(request.ID, filled(n)))
				ev := next(t, ch, tt.event)
				require.Equal(t, padded(filled(n), tt.max), ev.PrivateData, "%d bytes", n)
				require.Same(t, client, ev.ID)
				require.NoError(t, request.ID.Close()) // no program gets the peer's event
				require.NoError(t, client.Close())
			}
		})
	}
}

// Dial, Accept and Reject do the same at the limits.
func TestPrivateDataOfConnections(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	for _, n := range []int{0, 1, maxRequestData - 1, maxRequestData, maxRejectData, maxReplyData - 1, maxReplyData} {
		dialed := make(chan accepted, 1)
		go func() {
			conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{PrivateData: filled(min(n, maxRequestData))}))
			dialed <- accepted{conn: conn, err: err}
		}()
		req, err := ln.Accept(ctx)
		require.NoError(t, err)
		require.Equal(t, padded(filled(min(n, maxRequestData)), maxRequestData), req.PrivateData())
		server, err := req.Accept(ctx, inPool(&rdmacm.Config{PrivateData: filled(n)}))
		require.NoError(t, err)
		client := <-dialed
		require.NoError(t, client.err)
		require.Equal(t, padded(filled(n), maxReplyData), client.conn.PeerData())
		require.NoError(t, client.conn.Close())
		require.NoError(t, server.Close())
	}
}
