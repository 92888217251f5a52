// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/transfer"
)

// carryOut submits a batch with one request and waits for it.
func carryOut(ctx context.Context, b *transfer.Batch, err error) error {
	if err != nil {
		return err
	}
	if err := b.Submit(ctx); err != nil {
		return err
	}
	return b.Wait(ctx)
}

func write(ctx context.Context, p *transfer.Peer, to *transfer.RemoteRegion, data []byte) error {
	b := p.NewBatch(1)
	return carryOut(ctx, b, b.Write(to, 0, data))
}

// What was addressed to an engine never reaches the next one at its address.
func TestRestartedEngine(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	config := transfer.RegionConfig{Name: "memory", Access: all}
	a, b := newEngine(t, transfer.Config{}), newEngine(t, transfer.Config{})
	_, err := b.Alloc(slot, config)
	require.NoError(t, err)
	ln, err := b.Listen(ctx, ":0", transfer.ListenConfig{})
	require.NoError(t, err)
	address := at(t, ln)
	peer, err := a.Dial(ctx, address, transfer.DialConfig{})
	require.NoError(t, err)
	old, err := peer.Region(ctx, "memory")
	require.NoError(t, err)
	data := random(slot)
	require.NoError(t, write(ctx, peer, old, data))
	require.NoError(t, b.Close())
	_, port, ok := bytes.Cut([]byte(address), []byte(":"))
	require.True(t, ok)

	b = newEngine(t, transfer.Config{})
	region, err := b.Alloc(slot, config)
	require.NoError(t, err)
	var next *transfer.Listener
	cmtest.Soon(t, "the port is free", func() bool {
		next, err = b.Listen(ctx, ":"+string(port), transfer.ListenConfig{})
		return err == nil
	})
	t.Cleanup(func() { require.NoError(t, next.Close()) })
	require.ErrorIs(t, write(ctx, peer, old, data), transfer.ErrSessionEnded)
	remote, err := peer.Region(ctx, "memory")
	require.NoError(t, err)
	require.NotEqual(t, old.Incarnation(), remote.Incarnation())
	err = write(ctx, peer, old, data)
	require.ErrorIs(t, err, transfer.ErrSessionEnded)
	var failed *transfer.RequestError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, make([]byte, slot), region.Bytes())
	require.NoError(t, write(ctx, peer, remote, data))
	require.True(t, bytes.Equal(data, region.Bytes()))
}

// victim has a region of zeros and listens at an address until it is killed.
func victim(args []string, stdout, stderr io.Writer) int {
	ctx := context.Background()
	e, err := transfer.New(transfer.Config{})
	if err == nil {
		_, err = e.Alloc(workers*(slot+guard), transfer.RegionConfig{Name: "memory", Access: all})
	}
	var ln *transfer.Listener
	if err == nil {
		ln, err = e.Listen(ctx, args[0], transfer.ListenConfig{})
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, ln.Addr().Port())
	for {
		if _, err := ln.Accept(ctx); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
	}
}

// The traffic goes on with the next process at the address.
func TestPeerIsKilled(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	a := newEngine(t, transfer.Config{})
	server := process.Start(t, process.Command(t, "victim", ":0"))
	port := server.Line()
	host := d.IPv4
	if testdevice.Soft() {
		host = netip.MustParseAddr("10.77.0.1")
	}
	peer, err := a.Dial(ctx, host.String()+":"+port, transfer.DialConfig{})
	require.NoError(t, err)
	tr := &traffic{t: t, ctx: ctx, ticks: make(chan struct{}, 1), allowed: func(err error) bool {
		return errors.Is(err, transfer.ErrSessionEnded) || errors.Is(err, syscall.ETIMEDOUT)
	}}
	for i := range workers {
		tr.add(&worker{peer: peer, at: i * (slot + guard)})
	}
	t.Cleanup(tr.halt)
	for range 2 {
		tr.goesOn()
		server.Kill()
		start := time.Now()
		server = process.Start(t, process.Command(t, "victim", ":"+port))
		tr.goesOn()
		t.Logf("with the next process after %v", time.Since(start))
	}
	tr.halt()
	require.Positive(t, tr.failures())
	server.Kill()
}

// Nothing writes to the memory of a region after Close.
func TestCloseRegionInUse(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{Connections: 2})
	data := random(1 << 20)
	for range 5 {
		memory := make([]byte, len(data))
		region, err := p.b.Register(memory, transfer.RegionConfig{Name: "short-lived", Access: all})
		require.NoError(t, err)
		remote, err := p.dialed.Region(ctx, "short-lived")
		require.NoError(t, err)
		begun, ended := make(chan struct{}, 1000), make(chan error, 1)
		go func() {
			for {
				if err := write(ctx, p.dialed, remote, data); err != nil {
					ended <- err
					return
				}
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		}()
		cmtest.Take(t, begun, "a write")
		require.NoError(t, region.Close())
		require.NoError(t, region.Close())
		clear(memory)
		require.ErrorIs(t, cmtest.Take(t, ended, "the end of the writes"), transfer.ErrWithdrawn)
		require.Equal(t, make([]byte, len(memory)), memory)
	}
}

// The memory of a canceled batch is the program's again after Wait.
func TestCancel(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{SliceSize: 4096}) // more slices than fit into flights
	const size, n = 256 << 10, 8
	region, err := p.b.Alloc(size, transfer.RegionConfig{Name: "large", Access: all})
	require.NoError(t, err)
	remote, err := p.dialed.Region(ctx, "large")
	require.NoError(t, err)
	memory, zeros, canceled := random(size*n), make([]byte, size*n), 0
	b := p.dialed.NewBatch(n)
	for i := range 20 {
		b.Reset()
		for j := range n {
			part := memory[j*size : (j+1)*size]
			if i%2 == 0 {
				require.NoError(t, b.Write(remote, 0, part))
			} else {
				require.NoError(t, b.Read(part, remote, 0))
			}
		}
		require.NoError(t, b.Submit(ctx))
		b.Cancel()
		if err := b.Wait(ctx); err != nil {
			require.ErrorIs(t, err, transfer.ErrCanceled)
			canceled++
		}
		b.Cancel()
		clear(memory)
		clear(region.Bytes())
		require.NoError(t, write(ctx, p.accepted, must(p.accepted.Region(ctx, "memory"))(t), zeros[:slot]))
		require.Equal(t, zeros, memory)
		require.Equal(t, zeros[:size], region.Bytes())
	}
	t.Logf("%d of 20 batches were canceled", canceled)
}

// A batch that a context may cancel, as Submit says, is used again only if that
// cannot come any more.
func TestCancelByContext(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	b, data := p.dialed.NewBatch(1), random(slot)
	fill := func() {
		b.Reset()
		require.NoError(t, b.Write(remote, 0, data))
	}
	for range 100 {
		fill()
		first, cancel := context.WithCancel(ctx)
		require.NoError(t, b.Submit(first))
		stop := context.AfterFunc(first, b.Cancel)
		canceled := cmtest.InBackground(func() error { cancel(); return nil })
		if err := b.Wait(ctx); err != nil {
			require.ErrorIs(t, err, transfer.ErrCanceled)
		}
		if !stop() {
			b = p.dialed.NewBatch(1)
		}
		fill()
		b.Cancel() // does nothing before Submit
		require.NoError(t, carryOut(ctx, b, nil))
		<-canceled
	}
}

// A notification for which the peer's mailbox has no room is not sent after
// Cancel, nor after the end of the context of Send.
func TestCancelNotification(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{Mailbox: 1, RetryTimeout: time.Minute})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	require.NoError(t, p.dialed.Send(ctx, []byte("first")))
	data := random(slot)
	for name, fill := range map[string]func(b *transfer.Batch) error{
		"behind data": func(b *transfer.Batch) error { return b.Write(remote, 0, data) },
		"alone":       func(*transfer.Batch) error { return nil },
	} {
		b := p.dialed.NewBatch(1)
		require.NoError(t, fill(b), name)
		require.NoError(t, b.Notify([]byte(name)))
		require.NoError(t, b.Submit(ctx))
		cmtest.Soon(t, "the data are written", func() bool { moved, total := b.Progress(); return moved == total })
		_, pending := errors.AsType[*transfer.PendingError](b.Wait(cmtest.Canceled(t)))
		require.True(t, pending, name)
		b.Cancel()
		require.ErrorIs(t, b.Wait(ctx), transfer.ErrCanceled, name)
		for i := range b.Len() {
			require.NoError(t, b.Err(i), name)
		}
	}
	short, cancel := context.WithCancel(ctx)
	sent := make(chan error)
	go func() { sent <- p.dialed.Send(short, []byte("second")) }()
	cmtest.Soon(t, "the message waits", func() bool { return transfer.WaitingNotifications(p.dialed) == 1 })
	cancel()
	require.Equal(t, context.Canceled, cmtest.Take(t, sent, "the end of Send"))

	for _, want := range []string{"first", "last"} {
		message, err := p.accepted.Receive(ctx)
		require.NoError(t, err)
		require.Equal(t, want, string(message))
		if want == "first" {
			require.NoError(t, p.dialed.Send(ctx, []byte("last")))
		}
	}
	require.True(t, bytes.Equal(data, p.atB.Bytes()[:slot]))
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}

// A wait may end before the batch, and a Submit without room for it.
func TestPendingError(t *testing.T) {
	needSoft(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{Pending: 1, RetryTimeout: time.Minute})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	data := random(slot)
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: p.Kind == softroce.KindWrite} })
	t.Cleanup(func() { softroce.SetFaults(nil) })
	b := p.dialed.NewBatch(1)
	require.NoError(t, b.Write(remote, 0, data))
	require.NoError(t, b.Submit(ctx))
	for _, err := range []error{b.Read(data, remote, 0), b.Write(remote, 0, data), b.Notify(nil), b.Submit(ctx)} {
		require.ErrorIs(t, err, syscall.EBUSY)
	}
	b.Reset()
	require.Equal(t, 1, b.Len())
	canceled := cmtest.Canceled(t)
	var pending *transfer.PendingError
	err = b.Wait(canceled)
	require.ErrorAs(t, err, &pending)
	require.ErrorIs(t, err, context.Canceled)
	other := p.dialed.NewBatch(1)
	require.NoError(t, other.Write(remote, 0, data))
	require.ErrorIs(t, other.Submit(canceled), context.Canceled)
	require.NotErrorIs(t, other.Wait(ctx), context.Canceled, "it was not submitted")
	softroce.SetFaults(nil)
	require.NoError(t, b.Wait(ctx))
	require.NoError(t, other.Submit(ctx))
	require.NoError(t, other.Wait(ctx))
	require.True(t, bytes.Equal(data, p.atB.Bytes()[:slot]))
}

// Batches get room in the order of Submit, so that small ones do not keep a
// large one out.
func TestSubmitInOrder(t *testing.T) {
	needSoft(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{Pending: 2, RetryTimeout: time.Minute})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	batch := func(requests int) *transfer.Batch {
		b := p.dialed.NewBatch(requests)
		for i := range requests {
			require.NoError(t, b.Write(remote, uint64(i), []byte{1}))
		}
		return b
	}
	submit := func(ctx context.Context, b *transfer.Batch, place int) <-chan error {
		submitted := make(chan error, 1)
		go func() { submitted <- b.Submit(ctx) }()
		cmtest.Soon(t, "Submit waits", func() bool { return transfer.Reserving(p.dialed) == place })
		return submitted
	}
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: p.Kind == softroce.KindWrite} })
	t.Cleanup(noFaults)
	first, large, small := batch(1), batch(2), batch(1)
	require.NoError(t, first.Submit(ctx))
	given, giveUp := context.WithCancel(ctx)
	gaveUp := submit(given, large, 1)
	require.ErrorIs(t, small.Submit(cmtest.Canceled(t)), context.Canceled, "there is room, but not before the large one")
	behind := submit(ctx, small, 2)
	giveUp()
	require.ErrorIs(t, cmtest.Take(t, gaveUp, "the end of Submit"), context.Canceled)
	require.NoError(t, cmtest.Take(t, behind, "the small batch's turn"))
	again := submit(ctx, large, 1)
	noFaults()
	require.NoError(t, cmtest.Take(t, again, "the large batch's turn"))
	for _, b := range []*transfer.Batch{first, large, small} {
		require.NoError(t, b.Wait(ctx))
	}
	require.Zero(t, p.dialed.Stats().Pending)
}

// A listener can be closed although its peers do not answer.
func TestCloseOfListenerWithSilentPeers(t *testing.T) {
	needSoft(t)
	ctx := bounded(t)
	a, b := newEngine(t, transfer.Config{}), newEngine(t, transfer.Config{})
	ln, err := b.Listen(ctx, ":0", transfer.ListenConfig{})
	require.NoError(t, err)
	for range 3 {
		_, err := a.Dial(ctx, at(t, ln), transfer.DialConfig{})
		require.NoError(t, err)
	}
	softroce.SetFaults(func(softroce.Packet) softroce.Fault { return softroce.Fault{Drop: true} })
	t.Cleanup(noFaults)
	require.NoError(t, cmtest.Take(t, cmtest.InBackground(ln.Close), "the end of the listener"))
}

// RegionConfig.Allow decides which peers are told of a region. That it says no
// later takes nothing back; Region.Close does.
func TestAllow(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	allowed := map[*transfer.Peer]bool{}
	var mu sync.Mutex
	allow := func(peer *transfer.Peer, is bool) {
		mu.Lock()
		defer mu.Unlock()
		allowed[peer] = is
	}
	allow(p.accepted, true)
	region, err := p.b.Alloc(slot, transfer.RegionConfig{Name: "some", Access: all, Allow: func(peer *transfer.Peer) bool {
		mu.Lock()
		defer mu.Unlock()
		return allowed[peer]
	}})
	require.NoError(t, err)
	remote, err := p.dialed.Region(ctx, "some")
	require.NoError(t, err)

	stranger, err := p.a.Dial(ctx, at(t, p.ln), transfer.DialConfig{})
	require.NoError(t, err)
	accepted, err := p.ln.Accept(ctx)
	require.NoError(t, err)
	require.NoError(t, accepted.Send(ctx, nil))
	_, err = stranger.Receive(ctx) // after all that the peer offered before
	require.NoError(t, err)
	for other := range stranger.Regions() {
		require.Equal(t, "memory", other.Name())
	}

	allow(p.accepted, false)
	data := random(slot)
	require.NoError(t, write(ctx, p.dialed, remote, data))
	require.True(t, bytes.Equal(data, region.Bytes()))
	require.NoError(t, region.Close())
	require.ErrorIs(t, write(ctx, p.dialed, remote, data), transfer.ErrWithdrawn)
}

// Everything may be closed at any time, by several goroutines, and again.
func TestCloseInUse(t *testing.T) {
	needDevice(t)
	closed := func(err error) bool {
		return errors.Is(err, os.ErrClosed) || errors.Is(err, transfer.ErrSessionEnded) || errors.Is(err, syscall.ECONNRESET)
	}
	for name, closers := range map[string]func(p *pair) []io.Closer{
		"peers":         func(p *pair) []io.Closer { return []io.Closer{p.dialed, p.accepted} },
		"dialed":        func(p *pair) []io.Closer { return []io.Closer{p.dialed} },
		"engines":       func(p *pair) []io.Closer { return []io.Closer{p.a, p.b} },
		"dialer engine": func(p *pair) []io.Closer { return []io.Closer{p.a} },
		"all":           func(p *pair) []io.Closer { return []io.Closer{p.a, p.dialed, p.ln, p.b, p.accepted} },
	} {
		t.Run(name, func(t *testing.T) {
			needDevice(t)
			p := newPair(t, transfer.Config{Connections: 2})
			tr := p.start(t, closed)
			tr.goesOn()
			var closing sync.WaitGroup
			for _, c := range closers(p) {
				for range 2 {
					closing.Go(func() {
						if err := c.Close(); err != nil {
							t.Errorf("close %v: %v", c, err)
						}
					})
				}
			}
			closing.Wait()
			for _, c := range closers(p) {
				require.NoError(t, c.Close())
			}
			require.ErrorIs(t, write(tr.ctx, p.dialed, nil, nil), syscall.EINVAL)
			tr.halt()
		})
	}
}
