// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
)

// ends are two peers, each of the other's engine, over one device.
type ends struct {
	t                *testing.T
	ctx              context.Context
	dialed, accepted *Peer
	remote           *RemoteRegion // of the end that was dialed
	memory           []byte
}

// newEnds returns two peers with that many connections between them. Their
// background pollers stay paused once they pause if pauses is set.
func newEnds(t *testing.T, connections int, pauses bool) *ends {
	t.Helper()
	need(t)
	if pauses {
		before := pauseTime
		t.Cleanup(func() { pauseTime = before })
		pauseTime = time.Hour
	}
	r := newRig(t, Config{})
	config := Config{Connections: connections, Devices: []string{r.engine.devices[0].name}}
	b, err := New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	const size = 16 << 20
	_, err = b.Alloc(size, RegionConfig{Name: "memory", Access: ReadAccess | WriteAccess})
	require.NoError(t, err)
	ln, err := b.Listen(r.ctx, ":0", ListenConfig{})
	require.NoError(t, err)
	a, err := New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	e := &ends{t: t, ctx: r.ctx}
	e.dialed, err = a.Dial(r.ctx, netip.AddrPortFrom(host(t), ln.Addr().Port()).String(), DialConfig{})
	require.NoError(t, err)
	e.accepted, err = ln.Accept(r.ctx)
	require.NoError(t, err)
	e.remote, err = e.dialed.Region(r.ctx, "memory")
	require.NoError(t, err)
	local, err := a.Alloc(size, RegionConfig{})
	require.NoError(t, err)
	e.memory = local.Bytes()
	cmtest.Soon(t, "all connections are up", func() bool { return len(e.paths(e.dialed)) == connections && len(e.paths(e.accepted)) == connections })
	return e
}

func (e *ends) paths(p *Peer) []*path {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*path(nil), p.session.up...)
}

// batch returns a batch that writes n bytes and may notify.
func (e *ends) batch(n int, notify bool) *Batch {
	e.t.Helper()
	b := e.dialed.NewBatch(1)
	require.NoError(e.t, b.Write(e.remote, 0, e.memory[:n]))
	if notify {
		require.NoError(e.t, b.Notify([]byte("written")))
	}
	return b
}

func (e *ends) carryOut(b *Batch) {
	e.t.Helper()
	require.NoError(e.t, b.Submit(e.ctx))
	require.NoError(e.t, b.Wait(e.ctx))
}

// pauseBackground makes batches until all background pollers of the dialer
// pause.
func (e *ends) pauseBackground() {
	e.t.Helper()
	small := e.batch(100, false)
	for paused := false; !paused; {
		require.NoError(e.t, e.ctx.Err())
		e.carryOut(small)
		paused = true
		for _, p := range e.paths(e.dialed) {
			paused = paused && p.paused.Load()
		}
	}
}

// Wait and Receive poll the only path by themselves.
func TestCallsPoll(t *testing.T) {
	e := newEnds(t, 1, false)
	dialed, accepted := e.paths(e.dialed)[0], e.paths(e.accepted)[0]
	var receiving sync.WaitGroup
	ctx, cancel := context.WithCancel(e.ctx)
	receiving.Go(func() {
		for {
			if _, err := e.accepted.Receive(ctx); err != nil {
				return
			}
		}
	})
	for b := e.batch(4096, true); dialed.polls.Load() < 100 || accepted.polls.Load() < 100; {
		require.NoError(t, e.ctx.Err())
		e.carryOut(b)
	}
	cancel()
	receiving.Wait()
}

// Wait polls several paths by itself, one after the other, if they carry all of
// the batch.
func TestCallsPollSeveralPaths(t *testing.T) {
	const connections = 3
	e := newEnds(t, connections, true)
	b := e.batch(connections*maxFlightBytes, false)
	e.pauseBackground()
	before := make(map[*path]uint32)
	for _, p := range e.paths(e.dialed) {
		before[p] = p.polls.Load()
	}
	e.carryOut(b)
	require.Len(t, before, connections)
	for p, calls := range before {
		require.True(t, p.paused.Load())
		require.Greater(t, p.polls.Load(), calls)
	}
	require.Empty(t, b.carriers)
}

// Devices share requests and flights, but not small ones.
func TestShare(t *testing.T) {
	for _, test := range []struct {
		n       int64
		devices int
		want    int64
	}{
		{16 << 20, 0, 16 << 20},
		{16 << 20, 1, 16 << 20},
		{16 << 20, 2, 8 << 20},
		{1 << 20, 4, 256 << 10},
		{1<<20 + 2, 2, 512<<10 + 4096}, // whole pages
		{128 << 10, 2, minShare},
		{1, 16, minShare},
	} {
		require.Equal(t, test.want, share(test.n, test.devices))
	}
}

// The background poller's pause ends if the program does not wait any more.
func TestBackgroundPollerResumes(t *testing.T) {
	e := newEnds(t, 1, false)
	e.pauseBackground()
	b := e.batch(16<<20, true) // more than fits into flights
	for range 3 {
		require.NoError(t, b.Submit(e.ctx))
		cmtest.Soon(t, "the batch is done", func() bool {
			moved, total := b.Progress()
			return moved == total
		})
		message, err := e.accepted.Receive(e.ctx)
		require.NoError(t, err)
		require.Equal(t, "written", string(message))
		require.NoError(t, b.Wait(e.ctx))
		require.NoError(t, e.accepted.Send(e.ctx, nil))
	}
}

// The pauses end for calls that wait for several paths, or for room.
func TestBackgroundPollersResumeForCalls(t *testing.T) {
	e := newEnds(t, 3, true)
	for range 3 {
		e.pauseBackground()
		e.carryOut(e.batch(16<<20, false))
	}
	e.pauseBackground()
	e.dialed.engine.config.Pending = 1
	b, other := e.batch(8<<20, false), e.batch(100, false)
	require.NoError(t, b.Submit(e.ctx))
	require.NoError(t, other.Submit(e.ctx))
	require.NoError(t, other.Wait(e.ctx))
	require.NoError(t, b.Wait(e.ctx))
}

// Batches of one path and of several end, whichever waits for which.
func TestCallsOfAllKinds(t *testing.T) {
	e := newEnds(t, 2, true)
	var running sync.WaitGroup
	for i, n := range []int{100, 4096, 1 << 20, 5 << 20} {
		running.Go(func() {
			b := e.batch(n, i%2 == 0)
			for range 30 {
				if err := errors.Join(b.Submit(e.ctx), b.Wait(e.ctx)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 60 {
		_, err := e.accepted.Receive(e.ctx)
		require.NoError(t, err)
	}
	running.Wait()
}

// What other goroutines do ends a call that polls.
func TestPollingEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		act  func(e *ends, cancel func())
		want error
	}{
		"message over the control connection": {func(e *ends, _ func()) { require.NoError(e.t, e.dialed.Send(e.ctx, nil)) }, nil},
		"context":                             {func(_ *ends, cancel func()) { cancel() }, context.Canceled},
		"Close":                               {func(e *ends, _ func()) { require.NoError(e.t, e.accepted.Close()) }, os.ErrClosed},
		"peer":                                {func(e *ends, _ func()) { require.NoError(e.t, e.dialed.Close()) }, syscall.ECONNRESET},
	} {
		t.Run("Receive, "+name, func(t *testing.T) {
			e := newEnds(t, 1, true)
			ctx, cancel := context.WithCancel(e.ctx)
			defer cancel()
			ended := make(chan error, 1)
			receive := func() {
				_, err := e.accepted.Receive(ctx)
				ended <- err
			}
			go receive()
			path := e.paths(e.accepted)[0]
			for b := e.batch(100, true); !path.paused.Load(); {
				e.carryOut(b)
				require.NoError(t, cmtest.Take(t, ended, "a message"))
				go receive()
			}
			e.awaitPolling(path)
			tt.act(e, cancel)
			require.ErrorIs(t, cmtest.Take(t, ended, "the end of Receive"), tt.want)
		})
	}
	for name, tt := range map[string]struct {
		act  func(e *ends, cancel func())
		want error
	}{
		"context": {func(_ *ends, cancel func()) { cancel() }, context.Canceled},
		"Close":   {func(e *ends, _ func()) { require.NoError(e.t, e.dialed.Close()) }, os.ErrClosed},
	} {
		t.Run("Wait, "+name, func(t *testing.T) {
			if !testdevice.Soft() {
				t.Skip("needs faults of the device in user space")
			}
			e := newEnds(t, 1, true)
			e.pauseBackground()
			softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: p.Kind == softroce.KindWrite} })
			t.Cleanup(func() { softroce.SetFaults(nil) })
			ctx, cancel := context.WithCancel(e.ctx)
			defer cancel()
			b := e.batch(100, false)
			require.NoError(t, b.Submit(ctx))
			ended := make(chan error, 1)
			go func() { ended <- b.Wait(ctx) }()
			e.awaitPolling(e.paths(e.dialed)[0])
			tt.act(e, cancel)
			require.ErrorIs(t, cmtest.Take(t, ended, "the end of Wait"), tt.want)
		})
	}
}

// awaitPolling waits until a call polls a path, whose background poller pauses.
func (e *ends) awaitPolling(p *path) {
	e.t.Helper()
	cmtest.Soon(e.t, "a call waits", func() bool { return p.waiting.Load() && p.paused.Load() })
}

// Two calls may wait for one batch, and for different paths: the first began
// when the other path was not up yet. The end of the batch ends both.
func TestCallsPollDifferentPaths(t *testing.T) {
	e := newEnds(t, 2, true)
	e.pauseBackground()
	p := e.dialed
	use := func(up ...*path) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.session.up = up
		p.changed()
	}
	paths := e.paths(p)
	first, second := paths[0], paths[1]
	use(first)
	p.mu.Lock()
	first.posting = true // so that it does not take the batch
	p.mu.Unlock()
	b := e.batch(100, false)
	require.NoError(t, b.Submit(e.ctx))
	ended := make(chan error, 1)
	go func() { ended <- b.Wait(e.ctx) }()
	e.awaitPolling(first)
	use(first, second)
	second.postAll()
	require.NoError(t, b.Wait(e.ctx))
	require.NoError(t, cmtest.Take(t, ended, "the end of the first Wait"))
	p.mu.Lock()
	first.posting = false
	p.mu.Unlock()
}

// A call whose context has ended does not poll on, however busy the path is.
func TestEndedContext(t *testing.T) {
	e := newEnds(t, 1, true)
	e.pauseBackground()
	path := e.paths(e.dialed)[0]
	require.True(t, path.tryBecomePoller())
	defer path.releasePoller()
	ctx, cancel := context.WithCancel(e.ctx)
	path.wake()
	require.NoError(t, path.await(ctx))
	cancel()
	path.wake()
	require.ErrorIs(t, path.await(ctx), context.Canceled)
}
