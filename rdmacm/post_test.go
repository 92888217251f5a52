// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// batchOf returns an empty batch.
func batchOf(t testing.TB, requests, segments int) *ibverbs.SendBatch {
	t.Helper()
	b, err := ibverbs.NewSendBatch(requests, segments)
	require.NoError(t, err)
	return b
}

// Batches of all kinds are under way at a time. They can be waited for in any
// order.
func TestPost(t *testing.T) {
	const transfers, each, size = 8, 4, 1000
	d := needDevice(t)
	d.Have(t, testdevice.Atomics)
	config := &rdmacm.Config{SendQueue: transfers * each, RecvQueue: transfers * each}
	client, server := connect(t, d.IPv4, config, config)
	here := alloc(t, client, transfers*each*size+8)
	there, err := server.Alloc(transfers*each*size+8, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteAtomic)
	require.NoError(t, err)
	ctx := bounded(t)
	const counter = transfers * each * size
	var receives []*rdmacm.Receive
	for name, add := range map[string]func(b *ibverbs.SendBatch, offset int) error{
		"write": func(b *ibverbs.SendBatch, at int) error {
			return b.Write(7, there.Remote().Sub(uint64(at), size), ibverbs.SendSignaled, here.Sub(at, size))
		},
		"send": func(b *ibverbs.SendBatch, at int) error {
			receive, err := server.PostRecv(there.Sub(at, size))
			if err != nil {
				return err
			}
			receives = append(receives, receive)
			return b.Send(7, 0, here.Sub(at, size))
		},
		"read": func(b *ibverbs.SendBatch, at int) error {
			return b.Read(7, there.Remote().Sub(uint64(at), size), 0, here.Sub(at, size))
		},
		"fetch and add": func(b *ibverbs.SendBatch, at int) error {
			return b.FetchAdd(7, there.Remote().Sub(counter, 8), uint64(at), 0, here.Sub(counter, 8))
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range counter {
				here.Bytes()[i], there.Bytes()[i] = byte(i*7+i/256), byte(i*3+i/256)
			}
			binary.NativeEndian.PutUint64(there.Bytes()[counter:], 0)
			sum := uint64(0)
			all := make([]rdmacm.Transfer, transfers)
			batch := batchOf(t, each, 1)
			for i := range all {
				batch.Reset()
				for k := range each {
					at := (i*each + k) * size
					sum += uint64(at)
					require.NoError(t, add(batch, at))
				}
				require.NoError(t, client.Post(ctx, &all[i], batch))
			}
			for _, i := range []int{transfers - 1, 0, 3, 1, 2, 4, 6, 5, 5} {
				require.NoError(t, all[i].Wait(ctx))
			}
			for _, r := range receives {
				_, err := r.Wait(ctx)
				require.NoError(t, err)
			}
			receives = nil
			if name == "fetch and add" {
				require.Equal(t, sum, binary.NativeEndian.Uint64(there.Bytes()[counter:]))
				return
			}
			require.Equal(t, here.Bytes()[:counter], there.Bytes()[:counter])
		})
	}
	require.NoError(t, client.Err())
	require.Zero(t, rdmacm.Sending(client))
}

// Many goroutines post batches, and others send one request at a time. The
// batches have more requests together than the queue has places.
func TestPostFromManyGoroutines(t *testing.T) {
	manyProcessors(t)
	const rounds = 50
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 8}, nil)
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	ctx := bounded(t)
	for _, err := range together(12, func(i int) error {
		requests := []int{1, 3, 8}[i%3]
		batch, err := ibverbs.NewSendBatch(requests, 1)
		if err != nil {
			return err
		}
		for range requests {
			if err := batch.Write(0, there.Remote(), 0, here.All()); err != nil {
				return err
			}
		}
		var transfer rdmacm.Transfer
		for range rounds {
			if i%2 == 0 {
				err = client.Write(ctx, there.Remote(), here.All())
			} else if err = client.Post(ctx, &transfer, batch); err == nil {
				err = transfer.Wait(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	require.Zero(t, rdmacm.Sending(client))
}

// Transfers wait for room in the order in which they came. Small ones do not
// overtake a batch that needs the whole queue. Otherwise the batch might never
// find it empty.
func TestPostIsNotOvertaken(t *testing.T) {
	needOwnReceives(t)
	const later = 3
	d := needDevice(t)
	for name, gives := range map[string]bool{"it is posted": false, "it gives up": true} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 2}, nil)
			here, there := alloc(t, client, 8), alloc(t, server, 8)
			ctx := bounded(t)
			single, whole := batchOf(t, 1, 1), batchOf(t, 2, 1)
			require.NoError(t, single.Send(0, 0, here.All())) // there is no receive yet
			for range 2 {
				require.NoError(t, whole.Write(0, there.Remote(), 0, here.All()))
			}
			var first, batch rdmacm.Transfer
			require.NoError(t, client.Post(ctx, &first, single))
			waiting, giveUp := context.WithCancel(ctx)
			t.Cleanup(giveUp)
			posted := make(chan error, 1)
			go func() { posted <- client.Post(waiting, &batch, whole) }()
			require.Eventually(t, func() bool { return rdmacm.WaitingForRoom(client) == 1 }, patience, time.Millisecond)

			err := client.Write(short(t), there.Remote(), here.All())
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, isPending := errors.AsType[*rdmacm.PendingError](err)
			require.False(t, isPending, "there is room, but the batch came first")

			written := make(chan error, later)
			for range later {
				go func() { written <- client.Write(ctx, there.Remote(), here.All()) }()
			}
			require.Eventually(t, func() bool { return rdmacm.WaitingForRoom(client) == 1+later }, patience, time.Millisecond)
			if gives {
				giveUp()
				require.ErrorIs(t, <-posted, context.Canceled)
				require.Eventually(t, func() bool { return rdmacm.Sending(client) == 2 }, patience, time.Millisecond, "the next one has room")
			}
			_, err = server.PostRecv(there.All())
			require.NoError(t, err)
			if !gives {
				require.NoError(t, <-posted)
				require.NoError(t, batch.Wait(ctx))
			}
			for range later {
				require.NoError(t, <-written)
			}
			require.NoError(t, first.Wait(ctx))
			require.Zero(t, rdmacm.Sending(client))
			require.Zero(t, rdmacm.WaitingForRoom(client))
		})
	}
}

// Goroutines that wait for room, with and without batches, learn that the
// connection has ended.
func TestConnectionEndsWhileManyWaitForRoom(t *testing.T) {
	manyProcessors(t)
	needOwnReceives(t)
	const many = 12
	d := needDevice(t)
	for name, end := range map[string]func(client, server *rdmacm.Conn) error{
		"here":  func(client, _ *rdmacm.Conn) error { return client.Close() },
		"there": func(_, server *rdmacm.Conn) error { return server.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 4}, nil)
			here := alloc(t, client, 8)
			ctx := bounded(t)
			batches := make([]*ibverbs.SendBatch, many)
			for i := range batches {
				batches[i] = batchOf(t, 1+i%4, 1)
				for range 1 + i%4 {
					require.NoError(t, batches[i].Send(0, 0, here.All())) // there is no receive
				}
			}
			var first rdmacm.Transfer
			require.NoError(t, client.Post(ctx, &first, batches[3]))
			ended := make(chan error, many)
			for i := range many {
				go func() {
					if i%2 == 0 {
						ended <- client.Send(ctx, here.All())
						return
					}
					var transfer rdmacm.Transfer
					ended <- client.Post(ctx, &transfer, batches[i])
				}()
			}
			require.Eventually(t, func() bool { return rdmacm.WaitingForRoom(client) == many }, patience, time.Millisecond)
			require.NoError(t, end(client, server))
			for range many {
				err := <-ended
				require.Error(t, err)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
			require.Error(t, first.Wait(ctx))
			require.Zero(t, rdmacm.WaitingForRoom(client))
		})
	}
}

// Requests that no goroutine waits for fill the queue several times. They are
// done when a later transfer is done.
func TestPostWithoutTransfer(t *testing.T) {
	d := needDevice(t)
	for _, tt := range []struct{ queue, requests int }{{1, 1}, {2, 1}, {2, 2}, {8, 1}, {8, 3}, {8, 8}} {
		t.Run(fmt.Sprintf("%d of %d", tt.requests, tt.queue), func(t *testing.T) {
			client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: tt.queue}, nil)
			const rounds = 30
			size := rounds * tt.requests
			here, there := alloc(t, client, size), alloc(t, server, size)
			for i := range here.Bytes() {
				here.Bytes()[i] = byte(i + 1)
			}
			ctx, batch := bounded(t), batchOf(t, tt.requests, 1)
			for i := range rounds {
				batch.Reset()
				for k := range tt.requests {
					at := i*tt.requests + k
					require.NoError(t, batch.Write(0, there.Remote().Sub(uint64(at), 1), ibverbs.SendSignaled, here.Sub(at, 1)))
				}
				require.NoError(t, client.Post(ctx, nil, batch))
			}
			var last rdmacm.Transfer
			require.NoError(t, client.Post(ctx, &last, batch))
			require.NoError(t, last.Wait(ctx))
			require.Equal(t, here.Bytes(), there.Bytes())
			require.Zero(t, rdmacm.Sending(client))

			// After such requests, a batch that needs the whole queue finds
			// room.
			whole := batchOf(t, tt.queue, 1)
			for range tt.queue {
				require.NoError(t, whole.Write(0, there.Remote(), 0, here.Sub(0, 1)))
			}
			batch.Reset()
			require.NoError(t, batch.Write(0, there.Remote(), 0, here.Sub(0, 1)))
			require.NoError(t, client.Post(ctx, nil, batch))
			require.NoError(t, client.Post(ctx, &last, whole))
			require.NoError(t, last.Wait(ctx))
			require.NoError(t, client.Post(ctx, nil, batch))
			require.NoError(t, client.Write(ctx, there.Remote(), here.Sub(0, 1)))
			require.Zero(t, rdmacm.Sending(client))
			require.NoError(t, client.Err())
		})
	}
}

// No request asks the device for a completion until the queue is half full.
func TestPostWithoutCompletion(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 8, KeepAlive: -1}, nil)
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	ctx, batch := bounded(t), batchOf(t, 1, 1)
	require.NoError(t, batch.Write(0, there.Remote(), ibverbs.SendSignaled, here.All()))
	before := rdmacm.Completions(client)
	for range 4 {
		require.NoError(t, client.Post(ctx, nil, batch))
	}
	require.Equal(t, 4, rdmacm.Sending(client))
	require.NoError(t, client.Write(ctx, there.Remote(), here.All()))
	require.Equal(t, before+1, rdmacm.Completions(client), "one for all five")
	require.Zero(t, rdmacm.Sending(client))
	for range 5 {
		require.NoError(t, client.Post(ctx, nil, batch))
	}
	require.NoError(t, client.Write(ctx, there.Remote(), here.All()))
	require.Equal(t, before+3, rdmacm.Completions(client), "one for five, and one for the last")
}

// A request that fails ends the connection even if no goroutine waits for it.
func TestPostWithoutTransferFails(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	ctx := bounded(t)
	bad, good := batchOf(t, 2, 1), batchOf(t, 1, 1)
	require.NoError(t, bad.Write(0, there.Remote(), 0, here.All()))
	beyond := there.Remote()
	beyond.Addr += 1 << 20
	require.NoError(t, bad.Write(0, beyond, 0, here.All()))
	require.NoError(t, good.Write(0, there.Remote(), 0, here.All()))
	require.NoError(t, client.Post(ctx, nil, bad))
	var transfer rdmacm.Transfer
	if err := client.Post(ctx, &transfer, good); err == nil { // unless the connection has ended before
		err = transfer.Wait(ctx)
		var failed *ibverbs.WCError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, ibverbs.WCRemoteAccess, failed.Status)
	}
	awaitEnd(t, client)
	var failed *ibverbs.WCError
	require.ErrorAs(t, client.Err(), &failed)
	require.Equal(t, ibverbs.WCRemoteAccess, failed.Status)
	require.Error(t, client.Post(ctx, nil, good))
}

// KeepAlive finds that requests are done although no goroutine waits for them.
// Then it finds that the peer is there.
func TestKeepAliveConfirms(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{KeepAlive: time.Hour}, nil)
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	batch := batchOf(t, 1, 1)
	require.NoError(t, batch.Write(0, there.Remote(), 0, here.All()))
	require.NoError(t, client.Post(bounded(t), nil, batch))
	require.Eventually(t, func() bool {
		rdmacm.CheckPeer(client)
		return rdmacm.Sending(client) == 0
	}, patience, time.Millisecond)
	require.NoError(t, client.Err())
}

// A request that cannot be posted is refused. It leaves the connection as it
// was.
func TestPostMisuse(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 4}, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	ctx := bounded(t)
	write := func(n int) *ibverbs.SendBatch {
		b := batchOf(t, n, 1)
		for range n {
			require.NoError(t, b.Write(0, there.Remote(), 0, here.All()))
		}
		return b
	}
	var transfer rdmacm.Transfer
	for name, tt := range map[string]struct {
		conn  *rdmacm.Conn
		t     *rdmacm.Transfer
		batch *ibverbs.SendBatch
		want  error
	}{
		"no batch":            {client, &transfer, nil, syscall.EINVAL},
		"empty batch":         {client, &transfer, batchOf(t, 1, 1), syscall.EINVAL},
		"more than the queue": {client, &transfer, write(5), syscall.EINVAL},
		"no connection":       {nil, &transfer, write(1), os.ErrInvalid},
		"zero connection":     {new(rdmacm.Conn), &transfer, write(1), os.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) { require.ErrorIs(t, tt.conn.Post(ctx, tt.t, tt.batch), tt.want) })
	}
	var none context.Context
	require.ErrorIs(t, client.Post(none, &transfer, write(1)), syscall.EINVAL)
	require.ErrorIs(t, client.Post(canceled(t), &transfer, write(1)), context.Canceled)
	require.ErrorIs(t, transfer.Wait(ctx), os.ErrInvalid, "it was never posted")

	// A transfer is under way.
	send := batchOf(t, 1, 1)
	require.NoError(t, send.Send(0, 0, here.Sub(0, 8))) // there is no receive
	require.NoError(t, client.Post(ctx, &transfer, send))
	require.ErrorIs(t, client.Post(ctx, &transfer, write(1)), syscall.EBUSY)
	err := transfer.Wait(short(t))
	pending, ok := errors.AsType[*rdmacm.PendingError](err)
	require.True(t, ok, err)
	require.Same(t, &transfer, pending.Transfer)
	received, err := server.PostRecv(there.Sub(0, 8))
	require.NoError(t, err)
	require.NoError(t, transfer.Wait(ctx))
	_, err = received.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, client.Post(ctx, &transfer, write(4)))
	require.NoError(t, transfer.Wait(ctx))
	require.NoError(t, client.Err())
}

// If the device refuses a request in the middle, the requests before it are
// done. The connection goes on.
func TestPostRefusedInTheMiddle(t *testing.T) {
	d := needDevice(t)
	// The batch does not fit into half of the smaller queue. It fits into half
	// of the larger one.
	for _, queue := range []int{8, 64} {
		client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: queue}, nil)
		here, there := alloc(t, client, 4096), alloc(t, server, 4096)
		ctx := bounded(t)
		for i := range here.Bytes() {
			here.Bytes()[i] = byte(i)
		}
		many := make([]ibverbs.Segment, 300) // more than the queue pair has
		for i := range many {
			many[i] = here.Sub(i, 1)
		}
		for name, transfer := range map[string]*rdmacm.Transfer{"a transfer": new(rdmacm.Transfer), "none": nil} {
			for _, good := range []int{0, 1, 3} {
				t.Run(fmt.Sprintf("queue of %d, %s, %d good", queue, name, good), func(t *testing.T) {
					clear(there.Bytes())
					batch := batchOf(t, 5, len(many))
					for i := range good {
						require.NoError(t, batch.Write(0, there.Remote().Sub(uint64(i*8), 8), 0, here.Sub(i*8, 8)))
					}
					require.NoError(t, batch.Write(0, there.Remote().Sub(100, 300), 0, many...))
					require.NoError(t, batch.Write(0, there.Remote().Sub(1000, 8), 0, here.Sub(0, 8)))
					err := client.Post(ctx, transfer, batch)
					require.ErrorIs(t, err, syscall.EINVAL)
					pending, ok := errors.AsType[*rdmacm.PendingError](err)
					require.Equal(t, good > 0, ok, err)
					if ok {
						require.True(t, transfer == nil || transfer == pending.Transfer)
						require.ErrorIs(t, pending.Transfer.Wait(ctx), syscall.EINVAL)
					}
					require.Equal(t, here.Bytes()[:good*8], there.Bytes()[:good*8])
					require.Equal(t, make([]byte, 4096-good*8), there.Bytes()[good*8:])
					require.Zero(t, rdmacm.Sending(client))
					require.NoError(t, client.Write(ctx, there.Remote(), here.Sub(0, 8)))
				})
			}
		}
	}
}

// A request fails at the peer. Its transfer ends with that failure, the
// requests behind it end as flushed, and the connection ends.
func TestPostFails(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	ctx := bounded(t)
	bad := there.Remote()
	bad.RKey++
	batch := batchOf(t, 3, 1)
	for _, to := range []ibverbs.RemoteBuffer{there.Remote(), bad, there.Remote()} {
		require.NoError(t, batch.Write(0, to, 0, here.All()))
	}
	all := make([]rdmacm.Transfer, 3)
	good := batchOf(t, 2, 1)
	for range 2 {
		require.NoError(t, good.Write(0, there.Remote(), 0, here.All()))
	}
	require.NoError(t, client.Post(ctx, &all[0], good))
	require.NoError(t, client.Post(ctx, &all[1], batch))
	behind := client.Post(ctx, &all[2], good) // unless the connection has ended before
	require.NoError(t, all[0].Wait(ctx))
	failed, ok := errors.AsType[*ibverbs.WCError](all[1].Wait(ctx))
	require.True(t, ok)
	require.Equal(t, ibverbs.WCRemoteAccess, failed.Status)
	if behind == nil {
		behind = all[2].Wait(ctx)
	}
	if d.Has(t, testdevice.LatePosts) {
		require.ErrorIs(t, behind, failed.Status, "the cause of the end")
	}
	require.Error(t, client.Err())
	require.Error(t, client.Post(ctx, &all[0], good))
}

// A refused transfer is not under way. There is nothing to wait for.
func TestWaitAfterARefusedPost(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	ctx := bounded(t)
	good, bad := batchOf(t, 1, 1), batchOf(t, 1, 300)
	require.NoError(t, good.Write(0, there.Remote(), 0, here.All()))
	many := make([]ibverbs.Segment, 300) // more than the queue pair has
	for i := range many {
		many[i] = here.Sub(0, 0)
	}
	require.NoError(t, bad.Write(0, there.Remote(), 0, many...))
	var transfer rdmacm.Transfer
	for range 2 {
		require.Error(t, client.Post(ctx, &transfer, bad))
		require.ErrorIs(t, transfer.Wait(short(t)), os.ErrInvalid)
		require.NoError(t, client.Post(ctx, &transfer, good))
		require.NoError(t, transfer.Wait(ctx))
	}
}
