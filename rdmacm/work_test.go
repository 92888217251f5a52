// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// The error of a transfer, and of the connection that it ends, names the
// operation, its bytes, the address in the peer's memory, and the peer.
func TestErrorsOfTransfersNameThem(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Atomics)
	ctx := bounded(t)
	remote := ibverbs.RemoteBuffer{Addr: 0x1230, RKey: 0x77, Len: 64}
	for name, tt := range map[string]struct {
		transfer func(c *rdmacm.Conn, mr *ibverbs.MR) error
		text     string
	}{
		"Write": {
			func(c *rdmacm.Conn, mr *ibverbs.MR) error { return c.Write(ctx, remote, mr.Sub(0, 24)) },
			"write of 24 bytes to 0x1230 of the peer's memory (key 0x77): ",
		},
		"Read": {
			func(c *rdmacm.Conn, mr *ibverbs.MR) error { return c.Read(ctx, mr.Sub(0, 24), remote) },
			"read of 24 bytes from 0x1230 of the peer's memory (key 0x77): ",
		},
		"FetchAdd": {
			func(c *rdmacm.Conn, mr *ibverbs.MR) error { return c.FetchAdd(ctx, remote, 1, mr.Sub(0, 8)) },
			"fetch and add of 8 bytes at 0x1230 of the peer's memory (key 0x77): ",
		},
		"CompareSwap": {
			func(c *rdmacm.Conn, mr *ibverbs.MR) error { return c.CompareSwap(ctx, remote, 0, 1, mr.Sub(0, 8)) },
			"compare and swap of 8 bytes at 0x1230 of the peer's memory (key 0x77): ",
		},
		"Post": {
			func(c *rdmacm.Conn, mr *ibverbs.MR) error {
				batch, err := ibverbs.NewSendBatch(2, 1)
				require.NoError(t, err)
				require.NoError(t, batch.Write(0, remote, 0, mr.Sub(0, 8)))
				require.NoError(t, batch.Write(0, remote, 0, mr.Sub(0, 8)))
				var transfer rdmacm.Transfer
				require.NoError(t, c.Post(ctx, &transfer, batch))
				return transfer.Wait(ctx)
			},
			"batch of 2 requests: ",
		},
		"Post without a Transfer": {
			func(c *rdmacm.Conn, mr *ibverbs.MR) error {
				batch, err := ibverbs.NewSendBatch(1, 1)
				require.NoError(t, err)
				require.NoError(t, batch.Write(0, remote, 0, mr.Sub(0, 8)))
				require.NoError(t, c.Post(ctx, nil, batch))
				<-c.Done()
				return c.Err()
			},
			"request that was posted without a Transfer: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, _ := connect(t, d.IPv4, nil, nil)
			err := tt.transfer(client, alloc(t, client, 64))
			require.Error(t, err)
			<-client.Done()
			for _, err := range []error{err, client.Err()} {
				require.ErrorContains(t, err, "connection with "+client.RemoteAddr().String()+": "+tt.text)
				require.NotContains(t, err.Error(), "work request")
				failed, ok := errors.AsType[*ibverbs.WCError](err)
				require.True(t, ok)
				require.Equal(t, ibverbs.WCRemoteAccess, failed.Status)
			}
		})
	}
	t.Run("Send", func(t *testing.T) {
		client, server := connect(t, d.IPv4, nil, nil)
		small := alloc(t, server, 8)
		_, err := server.PostRecv(small.Sub(0, 8))
		require.NoError(t, err)
		err = client.Send(ctx, alloc(t, client, 64).All())
		if cmtest.SharesPool() && err == nil { // the pool has the message
			return
		}
		require.ErrorContains(t, err, "connection with "+client.RemoteAddr().String()+": send of 64 bytes: ")
		<-server.Done()
		if failed, ok := errors.AsType[*ibverbs.WCError](server.Err()); ok {
			// Soft-RoCE has its own status for this case.
			require.Contains(t, []ibverbs.WCStatus{ibverbs.WCLocalLength, ibverbs.WCLocalQPOperation}, failed.Status)
			require.ErrorContains(t, server.Err(), "receive into 8 bytes: ")
		}
	})
}
