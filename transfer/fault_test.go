// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/softroce"
	"github.com/verbena-go/verbena/transfer"
)

const (
	all     = transfer.ReadAccess | transfer.WriteAccess
	slot    = 200 << 10 // bytes that a worker of traffic has
	guard   = 4096      // bytes between two slots, which no worker writes
	workers = 2         // in each direction
)

// traffic is a stream of transfers between two engines, in both directions.
// Every byte is checked.
type traffic struct {
	t       testing.TB
	ctx     context.Context
	allowed func(error) bool // errors after which a worker goes on
	stop    atomic.Bool
	ticks   chan struct{} // has an element after a round
	running sync.WaitGroup
	workers []*worker
}

// worker writes parts of its slot of the peer's region, and reads the slot.
type worker struct {
	peer   *transfer.Peer
	memory []byte // of the peer's region
	model  []byte // what must be in the slot
	at     int    // where the slot is in the region
	rounds atomic.Int64
	failed atomic.Int64
}

// pair is two engines, and each one as the other's peer. The second device of b
// is nearer to b's memory than the first.
type pair struct {
	ln       *transfer.Listener // of b
	a, b     *transfer.Engine
	dialed   *transfer.Peer // of a
	accepted *transfer.Peer // of b
	atA, atB *transfer.Region
}

func newPair(t testing.TB, config transfer.Config) *pair {
	t.Helper()
	return newPairAt(t, firstAddr(t), config)
}

// newPairAt returns a pair whose dialer uses an address of the listener.
func newPairAt(t testing.TB, addr netip.Addr, config transfer.Config) *pair {
	t.Helper()
	p := &pair{a: newEngine(t, config), b: newEngine(t, config)}
	transfer.SetNearer(p.b, 1)
	var err error
	p.atA, err = p.a.Alloc(workers*(slot+guard), transfer.RegionConfig{Name: "memory", Access: all})
	require.NoError(t, err)
	p.atB, err = p.b.Alloc(workers*(slot+guard), transfer.RegionConfig{Name: "memory", Access: all})
	require.NoError(t, err)
	ctx := bounded(t)
	p.ln, err = p.b.Listen(ctx, ":0", transfer.ListenConfig{})
	require.NoError(t, err)
	p.dialed, err = p.a.Dial(ctx, netip.AddrPortFrom(addr, p.ln.Addr().Port()).String(), transfer.DialConfig{})
	require.NoError(t, err)
	p.accepted, err = p.ln.Accept(ctx)
	require.NoError(t, err)
	return p
}

// start starts the traffic of a pair.
func (p *pair) start(t testing.TB, allowed func(error) bool) *traffic {
	tr := &traffic{t: t, ctx: bounded(t), allowed: allowed, ticks: make(chan struct{}, 1)}
	for i := range workers {
		tr.add(&worker{peer: p.dialed, memory: p.atB.Bytes(), at: i * (slot + guard)})
		tr.add(&worker{peer: p.accepted, memory: p.atA.Bytes(), at: i * (slot + guard)})
	}
	t.Cleanup(tr.halt) // before the engines are closed
	return tr
}

func (tr *traffic) add(w *worker) {
	w.model = make([]byte, slot)
	tr.workers = append(tr.workers, w)
	tr.running.Go(func() { tr.work(w) })
}

func (tr *traffic) work(w *worker) {
	src := rand.NewChaCha8([32]byte{byte(w.at), byte(w.at >> 8)})
	random := rand.New(src)
	in := make([]byte, slot)
	remote, err := w.peer.Region(tr.ctx, "memory")
	write, read := w.peer.NewBatch(1), w.peer.NewBatch(1)
	from, to := 0, slot
	for !tr.stop.Load() {
		if err == nil {
			_, _ = src.Read(w.model[from:to])
			write.Reset()
			err = carryOut(tr.ctx, write, write.Write(remote, uint64(w.at+from), w.model[from:to]))
		}
		if err == nil {
			read.Reset()
			err = carryOut(tr.ctx, read, read.Read(in, remote, uint64(w.at)))
		}
		if err != nil {
			w.failed.Add(1)
			tr.tick()
			if tr.allowed == nil || !tr.allowed(err) {
				tr.t.Errorf("a transfer of %v failed: %v", w.peer, err)
				return
			}
			if remote, err = w.peer.Region(tr.ctx, "memory"); err != nil {
				return // the peer is closed
			}
			from, to = 0, slot
			continue
		}
		if !bytes.Equal(w.model, in) {
			tr.t.Errorf("%v: what was read is not what was written", w.peer)
			return
		}
		w.rounds.Add(1)
		tr.tick()
		from = random.IntN(slot)
		to = from + random.IntN(slot-from) + 1
	}
}

func (tr *traffic) tick() {
	select {
	case tr.ticks <- struct{}{}:
	default:
	}
}

// goesOn waits until each worker has done two more rounds. It returns how long
// it took.
func (tr *traffic) goesOn() time.Duration {
	tr.t.Helper()
	start := time.Now()
	for _, w := range tr.workers {
		want := w.rounds.Load() + 2
		tr.until(fmt.Sprintf("transfers of %v go on", w.peer), func() bool { return w.rounds.Load() >= want })
	}
	return time.Since(start)
}

// until waits until ok returns true, which it calls after each round.
func (tr *traffic) until(what string, ok func() bool) {
	tr.t.Helper()
	for late := time.After(cmtest.Patience); !ok(); {
		select {
		case <-tr.ticks:
		case <-late:
			require.FailNow(tr.t, "not yet: "+what)
		}
		require.False(tr.t, tr.t.Failed())
	}
}

func (tr *traffic) halt() {
	tr.stop.Store(true)
	tr.running.Wait()
}

// end ends the traffic and checks the memory.
func (tr *traffic) end() {
	tr.t.Helper()
	tr.halt()
	for _, w := range tr.workers {
		require.True(tr.t, bytes.Equal(w.model, w.memory[w.at:w.at+slot]), "%v: the slot at %d", w.peer, w.at)
		require.Equal(tr.t, make([]byte, guard), w.memory[w.at+slot:w.at+slot+guard], "%v: what is behind the slot at %d", w.peer, w.at)
	}
}

func (tr *traffic) failures() (n int64) {
	for _, w := range tr.workers {
		n += w.failed.Load()
	}
	return n
}

// needSoft skips the test where there are not the two devices in user space.
func needSoft(t testing.TB) {
	t.Helper()
	if !testdevice.Soft() {
		t.Skip("needs devices that the test can break")
	}
	needDevice(t)
	t.Cleanup(func() { // lets go of devices that were removed
		_, err := rdmacm.Devices()
		require.NoError(t, err)
	})
}

func card(t testing.TB, name string) *softroce.Card {
	t.Helper()
	c, err := softroce.FindCard(name)
	require.NoError(t, err)
	return c
}

// fault is what may happen to a pair, and leaves one device.
type fault struct{ begin, end func(t *testing.T, p *pair) }

func noFaults() { softroce.SetFaults(nil) }

func faults() map[string]fault {
	soft0 := netip.MustParseAddr("10.77.0.1")
	port := func(name string) fault {
		return fault{
			func(t *testing.T, _ *pair) { require.NoError(t, card(t, name).SetPort(false)) },
			func(t *testing.T, _ *pair) { require.NoError(t, card(t, name).SetPort(true)) },
		}
	}
	device := func(name string) fault {
		return fault{
			func(t *testing.T, _ *pair) { require.NoError(t, card(t, name).Remove()) },
			func(t *testing.T, _ *pair) { require.NoError(t, card(t, name).Insert()) },
		}
	}
	drop := func(which func(p softroce.Packet) bool) fault {
		return fault{
			func(*testing.T, *pair) {
				softroce.SetFaults(func(p softroce.Packet) softroce.Fault { return softroce.Fault{Drop: which(p)} })
			},
			func(*testing.T, *pair) { noFaults() },
		}
	}
	silence := func(of netip.Addr) fault {
		return drop(func(p softroce.Packet) bool { return p.Source == of || p.Destination == of })
	}
	once := func(f func(p *pair)) fault {
		return fault{func(_ *testing.T, p *pair) { f(p) }, func(*testing.T, *pair) {}}
	}
	return map[string]fault{
		"loss":             drop(func(softroce.Packet) bool { return rand.N(50) == 0 }),
		"silence of soft0": silence(soft0),
		"port of soft1":    port("soft1"),
		"device soft0":     device("soft0"),
		"device soft1":     device("soft1"),

		"data connection":                     once(func(p *pair) { transfer.BreakData(p.dialed) }),
		"data connection at the other end":    once(func(p *pair) { transfer.BreakData(p.accepted) }),
		"all data connections":                once(func(p *pair) { transfer.BreakAllData(p.dialed) }),
		"control connection":                  once(func(p *pair) { transfer.BreakControl(p.dialed) }),
		"control connection at the other end": once(func(p *pair) { transfer.BreakControl(p.accepted) }),
		"everything": once(func(p *pair) {
			transfer.BreakControl(p.dialed)
			transfer.BreakAllData(p.accepted)
			transfer.BreakAllData(p.dialed)
		}),
	}
}

// The traffic survives each fault without an error, and goes on during the
// fault and afterwards.
func TestFaults(t *testing.T) {
	for name, f := range faults() {
		t.Run(name, func(t *testing.T) {
			needSoft(t)
			t.Cleanup(noFaults)
			p := newPair(t, transfer.Config{Connections: 2, RetryTimeout: time.Minute})
			tr := p.start(t, nil)
			tr.goesOn()
			f.begin(t, p)
			t.Logf("during the fault: %v", tr.goesOn())
			f.end(t, p)
			t.Logf("after it: %v", tr.goesOn())
			// All connections come back, and are used.
			tr.until("all connections are up", func() bool { return transfer.Paths(p.dialed) == 4 && transfer.Paths(p.accepted) == 4 })
			before := p.dialed.Stats().Devices
			tr.until("all devices are used", func() bool {
				now := p.dialed.Stats().Devices
				return now[0].Slices > before[0].Slices && now[1].Slices > before[1].Slices
			})
			tr.end()
			require.Zero(t, tr.failures())
		})
	}
}

// Requests that nothing can carry fail in time, and later ones succeed.
func TestRetryTimeout(t *testing.T) {
	needSoft(t)
	p := newPair(t, transfer.Config{RetryTimeout: 300 * time.Millisecond})
	ctx := bounded(t)
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	b := p.dialed.NewBatch(2)
	data := random(slot)
	require.NoError(t, b.Write(remote, 0, data))
	softroce.SetFaults(func(softroce.Packet) softroce.Fault { return softroce.Fault{Drop: true} })
	t.Cleanup(func() { softroce.SetFaults(nil) })
	require.NoError(t, b.Submit(ctx))
	err = b.Wait(ctx)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	t.Log(err)
	var failed *transfer.RequestError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "memory", failed.Region)
	b.Reset()
	require.NoError(t, b.Write(remote, 0, data))
	require.NoError(t, b.Submit(ctx))
	require.ErrorIs(t, b.Wait(ctx), syscall.ETIMEDOUT)
	softroce.SetFaults(nil)
	cmtest.Soon(t, "transfers go on", func() bool {
		remote, err := p.dialed.Region(ctx, "memory")
		require.NoError(t, err)
		b.Reset()
		if b.Write(remote, 0, data) != nil || b.Submit(ctx) != nil {
			return false
		}
		return b.Wait(ctx) == nil
	})
}

// Notifications arrive exactly once and in order across the end of the control
// connection.
func TestNotificationsOverFaults(t *testing.T) {
	needSoft(t)
	p := newPair(t, transfer.Config{Mailbox: 5, RetryTimeout: time.Minute})
	ctx := bounded(t)
	const n = 300
	ends := []*transfer.Peer{p.dialed, p.accepted}
	var running sync.WaitGroup
	var received [2]atomic.Int64
	for i, from := range ends {
		running.Go(func() {
			for j := range n {
				if err := from.Send(ctx, fmt.Append(nil, j)); err != nil {
					t.Errorf("send %d: %v", j, err)
					return
				}
			}
		})
		running.Go(func() {
			for j := range n {
				message, err := ends[1-i].Receive(ctx)
				if err != nil || string(message) != fmt.Sprint(j) {
					t.Errorf("got %q, %v as number %d", message, err, j)
					return
				}
				received[i].Add(1)
			}
		})
	}
	for i := range 6 {
		transfer.BreakControl(ends[i%2])
		want := received[0].Load() + 20
		cmtest.Soon(t, "notifications go on", func() bool { return received[0].Load() >= min(want, n) || t.Failed() })
	}
	running.Wait()
}
