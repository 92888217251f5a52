// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// waitForAll waits in several goroutines for the transfer that err says is
// pending. It reports whether the transfer was posted, and its error.
func waitForAll(ctx context.Context, err error) (posted bool, _ error) {
	pending, ok := errors.AsType[*rdmacm.PendingError](err)
	if !ok {
		if errors.Is(err, context.DeadlineExceeded) {
			return false, nil
		}
		return true, err
	}
	var others sync.WaitGroup
	defer others.Wait()
	for range 2 {
		others.Go(func() {
			brief, cancel := context.WithTimeout(ctx, rand.N(200*time.Microsecond))
			defer cancel()
			_ = pending.Transfer.Wait(brief) // may give up
		})
	}
	return true, pending.Transfer.Wait(ctx)
}

// More goroutines than places send, write, read and post batches again and
// again. Their contexts end at any time, beside refused requests and the
// connection's own. The peer receives what was sent, reads return what was
// written, and no place is lost.
func TestTransfersOfAllKindsAtOnce(t *testing.T) {
	manyProcessors(t)
	const workers, rounds, queue, share = 12, 150, 8, 128
	d := needDevice(t)
	d.Have(t, testdevice.Immediate)
	client, server := connect(t, d.IPv4, &rdmacm.Config{SendQueue: queue, MaxInline: 32, KeepAlive: patience},
		&rdmacm.Config{RecvQueue: 4})
	here, there := alloc(t, client, workers*share), alloc(t, server, workers*share)
	ctx := bounded(t)
	receiver, err := server.NewReceiver(16)
	require.NoError(t, err)
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	var checking sync.WaitGroup
	checking.Go(func() {
		for receiving.Err() == nil {
			rdmacm.CheckPeer(client)
			runtime.Gosched()
		}
	})
	var sent, received atomic.Int64
	result := make(chan error, 1)
	each(result, func() error {
		for {
			m, err := receiver.Next(receiving)
			if errors.Is(err, context.Canceled) {
				return nil
			} else if err != nil {
				return err
			}
			imm, hasImm := m.Imm()
			switch n, written := m.Written(); {
			case written && (n != 8 || !hasImm || len(m.Data) > 0),
				!written && hasImm && (len(m.Data) != 12 || binary.LittleEndian.Uint32(m.Data[8:]) != imm),
				!hasImm && len(m.Data) != 8:
				return fmt.Errorf("written: %v, %d bytes; immediate data: %v, %d; %v", written, n, hasImm, imm, m.Data)
			}
			received.Add(1)
		}
	})
	for _, err := range together(workers, func(w int) error {
		mine, its := here.Sub(w*share, share), there.Remote().Sub(uint64(w*share), share)
		part := func(at, n int) ibverbs.Segment { return here.Sub(w*share+at, n) }
		bytes := mine.Bytes()
		batch, err := ibverbs.NewSendBatch(queue, 1)
		if err != nil {
			return err
		}
		var transfers [3]rdmacm.Transfer
		postSome := func(ctx, brief context.Context) error {
			batch.Reset()
			for range 1 + rand.IntN(queue) {
				if err := batch.Write(9, its.Sub(64, 16), ibverbs.SendInline|ibverbs.SendSignaled, part(64, 16)); err != nil {
					return err
				}
			}
			posted := 0
			// The batch is the same while it is under way.
			for ; posted < len(transfers); posted++ {
				if err := client.Post(brief, &transfers[posted], batch); errors.Is(err, context.DeadlineExceeded) {
					break
				} else if err != nil {
					return err
				}
			}
			for i := range posted {
				if _, err := waitForAll(ctx, transfers[i].Wait(brief)); err != nil {
					return err
				}
			}
			return nil
		}
		round := func(i int) error {
			brief, cancel := context.WithTimeout(ctx, rand.N(1500*time.Microsecond))
			defer cancel()
			tag := uint32(w<<16 | i)
			message := func(err error) error {
				posted, err := waitForAll(ctx, err)
				if posted && err == nil {
					sent.Add(1)
				}
				return err
			}
			switch rand.IntN(7) {
			case 0:
				binary.LittleEndian.PutUint32(bytes[8:], tag)
				return message(client.SendImm(brief, tag, part(0, 12)))
			case 1:
				return message(client.Send(brief, part(0, 8)))
			case 2:
				return message(client.WriteImm(brief, its.Sub(32, 8), tag, part(32, 8)))
			case 3:
				binary.LittleEndian.PutUint32(bytes[16:], tag)
				if err := client.Write(ctx, its, part(16, 4)); err != nil {
					return err
				}
				posted, err := waitForAll(ctx, client.Read(brief, part(24, 4), its))
				if got := binary.LittleEndian.Uint32(bytes[24:]); posted && err == nil && got != tag {
					return fmt.Errorf("%#x was written, and %#x read", tag, got)
				}
				return err
			case 4:
				return postSome(ctx, brief)
			case 5:
				batch.Reset()
				for range 1 + rand.IntN(queue) {
					if err := batch.Write(9, its.Sub(96, 16), 0, part(96, 16)); err != nil {
						return err
					}
				}
				return client.Post(ctx, nil, batch)
			}
			if err := refused(ctx, client, part(0, 8)); !errors.Is(err, syscall.EINVAL) {
				return fmt.Errorf("not refused: %w", err)
			}
			return nil
		}
		for i := range rounds {
			if err := round(i); err != nil {
				return fmt.Errorf("goroutine %d, round %d: %w", w, i, err)
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return received.Load() == sent.Load() }, patience, time.Millisecond)
	stop()
	require.NoError(t, <-result)
	checking.Wait()
	require.Eventually(t, func() bool {
		rdmacm.CheckPeer(client) // shows that the requests without a completion are done
		return rdmacm.Sending(client) == 0 && rdmacm.InFlight(client) == 0
	}, patience, time.Millisecond)
	require.Zero(t, rdmacm.WaitingForRoom(client))
	require.NoError(t, client.Err())
}
