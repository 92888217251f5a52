// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rdmacm_test

import (
	"context"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// Transfers and receives with a context that cannot end allocate nothing. The
// test does not run with the race detector, which makes sync.Pool forget. The
// device in user space uses sync.Pool.
func TestTransfersAllocateNothing(t *testing.T) {
	if os.Getenv("VERBENA_HOSTILE") != "" {
		t.Skip("the hostile device itself allocates")
	}
	if check := os.Getenv("VERBENA_CHECK"); check != "" && check != "0" {
		t.Skip("the check of memory allocates when a function posts in a way in which none has before")
	}
	d := needDevice(t)
	d.Have(t, testdevice.Atomics)
	t.Run("a queue each", func(t *testing.T) { requireNoAllocations(t, d.IPv4, nil) })
	pool := newPool(t, &rdmacm.Pool{})
	t.Run("a pool", func(t *testing.T) { requireNoAllocations(t, d.IPv4, &rdmacm.Config{Queues: pool}) })
}

func requireNoAllocations(t *testing.T, ip netip.Addr, config *rdmacm.Config) {
	const size = 64
	client, server := connect(t, ip, config, config)
	here := alloc(t, client, size)
	there, err := server.Alloc(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteAtomic)
	require.NoError(t, err)
	receiver, err := client.NewReceiver(size)
	require.NoError(t, err)
	ctx, remote := context.Background(), there.Remote()
	out, in, word := []ibverbs.Segment{here.All()}, []ibverbs.Segment{there.All()}, here.Sub(0, 8)
	batch := batchOf(t, 4, 1)
	for range 4 {
		require.NoError(t, batch.Write(0, remote, 0, out...))
	}
	message, answer := batchOf(t, 1, 1), batchOf(t, 1, 1)
	require.NoError(t, message.Send(0, 0, out...))
	require.NoError(t, answer.Send(0, 0, in...))
	var transfer, answering rdmacm.Transfer
	for name, do := range map[string]func() error{
		"Write":       func() error { return client.Write(ctx, remote, here.All()) },
		"Read":        func() error { return client.Read(ctx, out[0], remote) },
		"FetchAdd":    func() error { return client.FetchAdd(ctx, remote.Sub(0, 8), 1, word) },
		"CompareSwap": func() error { return client.CompareSwap(ctx, remote.Sub(0, 8), 1, 2, word) },
		"Post and Wait": func() error {
			if err := client.Post(ctx, &transfer, batch); err != nil {
				return err
			}
			return transfer.Wait(ctx)
		},
		"Post without a transfer": func() error { return client.Post(ctx, nil, batch) },
		"Next": func() error { // waits for a message that may not have come
			if err := server.Post(ctx, &answering, answer); err != nil {
				return err
			}
			if _, err := receiver.Next(ctx); err != nil {
				return err
			}
			return answering.Wait(ctx)
		},
		"Send and Next": func() error {
			if err := server.Send(ctx, there.All()); err != nil {
				return err
			}
			_, err := receiver.Next(ctx)
			return err
		},
		"SendImm and Next": func() error {
			if err := server.SendImm(ctx, 7, in...); err != nil {
				return err
			}
			_, err := receiver.Next(ctx)
			return err
		},
		"WriteImm and Next": func() error {
			if err := server.WriteImm(ctx, here.Remote(), 7, in...); err != nil {
				return err
			}
			_, err := receiver.Next(ctx)
			return err
		},
		"Recv": func() error { // of a message that waits for it
			if err := client.Post(ctx, &transfer, message); err != nil {
				return err
			}
			if _, err := server.Recv(ctx, there.All()); err != nil {
				return err
			}
			return transfer.Wait(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, do())
			require.Zero(t, testing.AllocsPerRun(100, func() {
				if err := do(); err != nil {
					t.Error(err)
				}
			}))
		})
	}
}
