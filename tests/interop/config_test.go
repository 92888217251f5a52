// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// needDeviceHere is needDevice for tests that connect in this process, where
// librdmacm opens the device once and for all.
func needDeviceHere(t *testing.T) testdevice.Device {
	t.Helper()
	testdevice.Require(t)
	_, err := rdmacm.Devices()
	require.NoError(t, err)
	return needDevice(t)
}

// What a C program asks of its peer rules ours: ucmatose wants 5 retries and
// none without a receive, rping 7 of both, of which ours takes no more than its
// own.
func TestPeersRetryCounts(t *testing.T) {
	d := needDeviceHere(t)
	for _, tt := range []struct {
		client         program
		address        string
		args           string
		retry, ourMost int
		rnrRetry       int
		speaks         bool // sends a message once it is connected
	}{
		{theirUcmatose, ":7471", "-c 1 -C 0 -s", 5, 0, 0, false},
		{theirUcmatose, ":7471", "-c 1 -C 0 -s", 2, 2, 0, false},
		{theirs, ":7174", "-c -C 1 -a", 6, 0, ibverbs.RNRRetryForever, true},
		{theirs, ":7174", "-c -C 1 -a", 7, 7, ibverbs.RNRRetryForever, true},
	} {
		t.Run(tt.client.command, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			ln, err := rdmacm.Listen(ctx, d.IPv4.String()+tt.address, nil)
			require.NoError(t, err)
			defer ln.Close()
			client := tt.client.start(t, append(strings.Fields(tt.args), d.IPv4.String())...)
			req, err := ln.Accept(ctx)
			require.NoError(t, err)
			conn, err := req.Accept(ctx, &rdmacm.Config{RetryCount: tt.ourMost})
			require.NoError(t, err)
			attr, err := conn.QP().Query()
			require.NoError(t, err)
			require.Equal(t, tt.retry, attr.RetryCount)
			require.Equal(t, tt.rnrRetry, attr.RNRRetryCount)
			if tt.speaks { // C's rping may hang if the end comes before it knows that it is connected
				message, err := conn.Alloc(4096, ibverbs.AccessLocalWrite)
				require.NoError(t, err)
				_, err = conn.Recv(ctx, message.All())
				require.NoError(t, err)
			}
			require.NoError(t, conn.Close())
			client.Wait()
		})
	}
}

// How often C's rping sends its answer again is for the end to say that has no
// receive for it.
func TestPeerRNRRetryCount(t *testing.T) {
	d := needDeviceHere(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server := theirs.serve(t, "-a", d.IPv4.String(), "-C", "1")
	conn, err := rdmacm.Dial(ctx, d.IPv4.String()+":7174", &rdmacm.Config{PeerRNRRetryCount: -1})
	require.NoError(t, err)
	defer conn.Close()
	data, err := conn.Alloc(64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
	require.NoError(t, err)
	hello, err := conn.Alloc(16, 0)
	require.NoError(t, err)
	binary.BigEndian.PutUint64(hello.Bytes(), data.Remote().Addr)
	binary.BigEndian.PutUint32(hello.Bytes()[8:], data.Remote().RKey)
	binary.BigEndian.PutUint32(hello.Bytes()[12:], 64)
	require.NoError(t, conn.Send(ctx, hello.All()))
	server.Eventually("fails", func() bool {
		return strings.Contains(server.Stderr(), "cq completion failed status 13") // IBV_WC_RNR_RETRY_EXC_ERR
	})
}
