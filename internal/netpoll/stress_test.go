// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/netpoll"
)

// queue stands for a completion queue: tokens for it arrive on a descriptor
// that it shares with others.
type queue struct {
	ready    chan struct{}
	pending  atomic.Int64 // read from the descriptor, not yet taken
	taken    atomic.Int64
	canceled atomic.Int64
}

type board struct {
	f      *netpoll.FD
	fd     int
	queues []*queue
}

// try reads until it finds a token for the queue me.
func (b *board) try(me int, buf []byte) (bool, error) {
	for {
		done, err := read(b.fd, buf)
		if !done {
			return false, err
		}
		q := b.queues[buf[0]]
		q.pending.Add(1)
		if int(buf[0]) == me {
			return true, nil
		}
		select {
		case q.ready <- struct{}{}:
		default:
		}
	}
}

// consume takes the tokens of the queue me until the FD is closed.
func (b *board) consume(me int) error {
	q, buf := b.queues[me], make([]byte, 1)
	try := func() (bool, error) { return b.try(me, buf) }
	for {
		if n := q.pending.Swap(0); n > 0 {
			q.taken.Add(n)
			continue
		}
		ctx, cancel := randomContext()
		err := b.f.Wait(ctx, q.ready, try)
		cancel()
		switch {
		case err == nil:
		case errors.Is(err, context.Canceled), errors.Is(err, os.ErrDeadlineExceeded):
			q.canceled.Add(1)
		case errors.Is(err, os.ErrClosed):
			return nil
		default:
			return err
		}
	}
}

func randomContext() (context.Context, context.CancelFunc) {
	switch rand.IntN(4) {
	case 0:
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			for range rand.IntN(50) {
				runtime.Gosched()
			}
			cancel()
		}()
		return ctx, cancel
	case 1:
		return context.WithTimeout(context.Background(), rand.N(200*time.Microsecond))
	case 2:
		return context.WithCancel(context.Background()) // never canceled
	default:
		return context.Background(), func() {}
	}
}

func TestStress(t *testing.T) {
	const queues, writers, tokens = 32, 4, 2000 // tokens per writer
	goroutines := runtime.NumGoroutine()
	r, w := pipe(t)
	b := &board{f: open(t, r), fd: r}
	for range queues {
		b.queues = append(b.queues, &queue{ready: make(chan struct{}, 1)})
	}

	consumers := make(chan error, queues)
	for i := range queues {
		go func() { consumers <- b.consume(i) }()
	}
	stopKicking := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() {
		for {
			select {
			case <-stopKicking:
				return
			default:
				b.f.Kick()
				runtime.Gosched()
			}
		}
	})

	var written [queues]atomic.Int64
	var writing sync.WaitGroup
	for range writers {
		writing.Go(func() {
			for left := tokens; left > 0; {
				batch := make([]byte, min(left, 1+rand.IntN(8)))
				for i := range batch {
					batch[i] = byte(rand.IntN(queues))
					written[batch[i]].Add(1)
				}
				write(w, batch...)
				left -= len(batch)
				if rand.IntN(4) == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	writing.Wait()
	// From here on no waiter is helped by a Kick or a later write: what is still
	// on its way must arrive by itself.
	close(stopKicking)
	background.Wait()

	sum := func() (taken int64) {
		for _, q := range b.queues {
			taken += q.taken.Load()
		}
		return taken
	}
	if !becomesTrue(func() bool { return sum() == writers*tokens }) {
		require.FailNow(t, "tokens lost", "%d of %d taken\n%s", sum(), writers*tokens, stacks())
	}
	var closing sync.WaitGroup
	for range 3 {
		closing.Go(func() { _ = b.f.Close() })
	}
	for range queues {
		require.NoError(t, end(t, consumers))
	}
	closing.Wait()

	canceled := int64(0)
	for i, q := range b.queues {
		require.Equal(t, written[i].Load(), q.taken.Load(), fmt.Sprintf("queue %d", i))
		require.Zero(t, q.pending.Load())
		canceled += q.canceled.Load()
	}
	t.Logf("%d tokens, %d waits canceled", sum(), canceled)
	require.NotZero(t, canceled)
	require.True(t, becomesTrue(func() bool { return runtime.NumGoroutine() <= goroutines }), "goroutines left")
}
