// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/transfer"
)

// soakTime is how long TestSoak goes on: the value of VERBENA_SOAK, such as
// 10m, or a second.
func soakTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("VERBENA_SOAK")); err == nil {
		return d
	}
	return time.Second
}

// letters is a stream of writes with notifications from one peer to the other.
// Each arrives once, in order, and after its data, which nothing writes again.
type letters struct {
	stop atomic.Bool
	sent atomic.Int64
	ends sync.WaitGroup
}

func (l *letters) start(t testing.TB, ctx context.Context, from, to *transfer.Peer, at *transfer.Region) {
	remote, err := from.Region(ctx, "letter")
	require.NoError(t, err)
	written, checked := make(chan struct{}), make(chan struct{})
	l.ends.Go(func() {
		defer close(written)
		b, data := from.NewBatch(1), make([]byte, 8)
		for i := 1; !l.stop.Load(); i++ {
			binary.BigEndian.PutUint64(data, uint64(i))
			b.Reset()
			err := errors.Join(b.Write(remote, 0, data), b.Notify(data))
			if err = carryOut(ctx, b, err); err != nil {
				t.Errorf("notification %d of %v: %v", i, from, err)
				return
			}
			l.sent.Add(1)
			written <- struct{}{}
			<-checked
		}
		if err := from.Send(ctx, nil); err != nil {
			t.Errorf("the last notification of %v: %v", from, err)
		}
	})
	l.ends.Go(func() {
		defer close(checked)
		place := at.Bytes()
		for i := uint64(1); ; i++ {
			message, err := to.Receive(ctx)
			if err == nil && len(message) == 0 {
				return
			}
			if err != nil || binary.BigEndian.Uint64(message) != i || binary.BigEndian.Uint64(place) != i {
				t.Errorf("%v: notification %x where %d is next, with the data %x: %v", to, message, i, place, err)
			}
			clear(place)
			if _, ok := <-written; !ok {
				return
			}
			if binary.BigEndian.Uint64(place) != 0 {
				t.Errorf("%v: the data were written again after notification %d", to, i)
			}
			checked <- struct{}{}
		}
	})
}

// Two engines transfer in both directions, without an error, while all faults
// happen at random. The first one also transfers to a process that is killed
// again and again, and whose next incarnation it finds.
func TestSoak(t *testing.T) {
	needSoft(t)
	t.Cleanup(noFaults)
	p := newPair(t, transfer.Config{Connections: 2, RetryTimeout: time.Minute})
	lasting := p.start(t, nil)
	lasting.goesOn()
	var notes letters
	t.Cleanup(notes.ends.Wait)
	t.Cleanup(func() { notes.stop.Store(true) })
	config := transfer.RegionConfig{Name: "letter", Access: transfer.WriteAccess}
	for e, ends := range map[*transfer.Engine][2]*transfer.Peer{p.a: {p.accepted, p.dialed}, p.b: {p.dialed, p.accepted}} {
		region, err := e.Alloc(8, config)
		require.NoError(t, err)
		notes.start(t, lasting.ctx, ends[0], ends[1], region)
	}

	server := process.Start(t, process.Command(t, "victim", "10.77.0.1:0"))
	port := server.Line()
	mortal := &traffic{t: t, ctx: lasting.ctx, ticks: make(chan struct{}, 1), allowed: func(err error) bool {
		return errors.Is(err, transfer.ErrSessionEnded) || errors.Is(err, syscall.ETIMEDOUT)
	}}
	peer, err := p.a.Dial(lasting.ctx, "10.77.0.1:"+port, transfer.DialConfig{})
	require.NoError(t, err)
	for i := range workers {
		mortal.add(&worker{peer: peer, at: i * (slot + guard)})
	}
	t.Cleanup(mortal.halt)
	mortal.goesOn()

	all := faults()
	names := slices.Sorted(maps.Keys(all))
	counts := map[string]int{}
	longest := time.Duration(0)
	for began := time.Now(); time.Since(began) < soakTime(); {
		if rand.IntN(4) == 0 {
			server.Kill()
			server = process.Start(t, process.Command(t, "victim", "10.77.0.1:"+port))
			longest = max(longest, mortal.goesOn())
			counts["kill"]++
			continue
		}
		name := names[rand.IntN(len(names))]
		all[name].begin(t, p)
		longest = max(longest, lasting.goesOn())
		all[name].end(t, p)
		longest = max(longest, lasting.goesOn())
		counts[name]++
	}
	mortal.goesOn()
	mortal.halt()
	notes.stop.Store(true)
	notes.ends.Wait()
	lasting.end()
	require.Zero(t, lasting.failures())
	var rounds int64
	for _, w := range append(lasting.workers, mortal.workers...) {
		rounds += w.rounds.Load()
	}
	t.Logf("%d writes and reads, %d notifications, the longest wait %v, goroutines %d, heap %d KiB; faults %v",
		rounds, notes.sent.Load(), longest, runtime.NumGoroutine(), heap()>>10, counts)
	server.Kill()
}
