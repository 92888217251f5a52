// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64 && !race

package cm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/instructions"
	"github.com/verbena-go/verbena/rdmacm"
)

// counted are transfers over a device that completes them at once.
func counted(t *testing.T) map[string]func() error {
	conn := echoing(t)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	mr, err := conn.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	piece, remote, ctx := mr.Sub(0, 64), ibverbs.RemoteBuffer{Addr: 4096, RKey: 1, Len: 4096}, context.Background()
	post := func(n int) func() error {
		var transfer rdmacm.Transfer
		batch, err := ibverbs.NewSendBatch(n, 1)
		require.NoError(t, err)
		for range n {
			require.NoError(t, batch.Send(0, 0, piece))
		}
		return func() error {
			if err := conn.Post(ctx, &transfer, batch); err != nil {
				return err
			}
			return transfer.Wait(ctx)
		}
	}
	return map[string]func() error{
		"Conn.Send":    func() error { return conn.Send(ctx, piece) },
		"Conn.Write":   func() error { return conn.Write(ctx, remote, piece) },
		"Conn.Recv":    func() error { _, err := conn.Recv(ctx, piece); return err },
		"Conn.Post 1":  post(1),
		"Conn.Post 64": post(64),
	}
}

// TestCounted is what TestInstructions runs.
func TestCounted(t *testing.T) { instructions.Run(t, counted) }

// Each transfer takes as many instructions as it did.
func TestInstructions(t *testing.T) { instructions.Check(t, counted) }
