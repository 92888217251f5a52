// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/misuse"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// newPool returns a pool. When the connections that are made later are closed,
// nothing of the pool may be left.
func newPool(t testing.TB, pool *rdmacm.Pool) *rdmacm.Pool {
	t.Helper()
	testdevice.Require(t).Have(t, testdevice.SRQs)
	t.Cleanup(func() { require.Zero(t, rdmacm.PoolConns(pool)) })
	return pool
}

// Messages of all sizes go in both directions, whichever ends have a pool. All
// else works as without a pool.
func TestPool(t *testing.T) {
	const size = 256
	d := needDevice(t)
	hasImm := d.Has(t, testdevice.Immediate)
	a, b := newPool(t, &rdmacm.Pool{Sends: 256, Receives: 8, MessageSize: size}), newPool(t, &rdmacm.Pool{Sends: 256, Receives: 8, MessageSize: size})
	for name, tt := range map[string]struct{ client, server *rdmacm.Pool }{
		"client":   {a, nil},
		"server":   {nil, a},
		"each":     {a, b},
		"the same": {a, a},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			client, server := connect(t, d.IPv4, &rdmacm.Config{Queues: queuesOf(tt.client), Segments: 2}, &rdmacm.Config{Queues: queuesOf(tt.server), Segments: 2})
			ends := [2]*rdmacm.Conn{client, server}
			memory := [2]*ibverbs.MR{}
			pools := [2]*rdmacm.Pool{tt.client, tt.server}
			for i, pool := range pools {
				if pool != nil && pool == pools[1-i] {
					require.Same(t, ends[1-i].PD(), ends[i].PD())
				}
				var err error
				memory[i], err = ends[i].Alloc(2*size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteAtomic)
				require.NoError(t, err)
			}
			for from, to := range []int{1, 0} {
				sender, receiver := ends[from], ends[to]
				out, in := memory[from], memory[to]
				for n := 0; n <= size; n += 51 {
					for i := range n {
						out.Bytes()[i] = byte(n + i)
					}
					sent := inBackground(func() error {
						if hasImm {
							return sender.SendImm(ctx, uint32(n), out.Sub(0, n))
						}
						return sender.Send(ctx, out.Sub(0, n))
					})
					clear(in.Bytes())
					received, err := receiver.PostRecv(in.Sub(0, 100), in.Sub(300, size-100))
					require.NoError(t, err)
					got, err := received.Wait(ctx)
					require.NoError(t, err)
					require.NoError(t, <-sent)
					require.Equal(t, n, got)
					imm, ok := received.Imm()
					require.Equal(t, hasImm, ok)
					require.True(t, !hasImm || imm == uint32(n), imm)
					require.Equal(t, out.Bytes()[:min(n, 100)], in.Bytes()[:min(n, 100)])
					require.Equal(t, out.Bytes()[min(n, 100):n], in.Bytes()[300:300+max(n-100, 0)])
				}
				// Messages that come before their receives wait, in order.
				waits := 0
				if pools[to] != nil {
					waits = 20
				}
				for i := range waits {
					out.Bytes()[0] = byte(i)
					require.NoError(t, sender.Send(ctx, out.Sub(0, 1+i)))
				}
				for i := range waits {
					n, err := receiver.Recv(ctx, in.All())
					require.NoError(t, err)
					require.Equal(t, 1+i, n)
					require.Equal(t, byte(i), in.Bytes()[0])
				}
				require.NoError(t, sender.Write(ctx, in.Remote(), out.All()))
				require.Equal(t, out.Bytes(), in.Bytes())
				require.NoError(t, sender.Read(ctx, out.Sub(0, 8), in.Remote().Sub(8, 8)))
				if d.Has(t, testdevice.Atomics) {
					require.NoError(t, sender.FetchAdd(ctx, in.Remote(), 1, out.Sub(0, 8)))
				}
				if !hasImm {
					continue
				}
				written := inBackground(func() error { return sender.WriteImm(ctx, in.Remote(), 9, out.Sub(0, 16)) })
				r, err := receiver.PostRecv()
				require.NoError(t, err)
				n, err := r.Wait(ctx)
				require.NoError(t, err)
				require.NoError(t, <-written)
				require.Zero(t, n)
				bytes, isWrite := r.Written()
				require.True(t, isWrite)
				require.Equal(t, 16, bytes)
			}
		})
	}
}

// Shared objects exist as long as connections do, whichever connection is
// closed first. Later connections make them anew. Memory that is registered on
// the pool's protection domain holds up only the last Close.
func TestPoolEndsWithTheLastConnection(t *testing.T) {
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{})
	shared := &rdmacm.Config{Queues: pool}
	for range 2 {
		client, server := connect(t, d.IPv4, shared, shared)
		require.Equal(t, 2, rdmacm.PoolConns(pool))
		require.NoError(t, server.Close())
		require.Equal(t, 1, rdmacm.PoolConns(pool))
		another, second := connect(t, d.IPv4, nil, shared) // it is of use still
		requireTalk(t, another, second)
		require.Same(t, client.PD(), second.PD())
		mr, err := client.PD().Alloc(64, 0)
		require.NoError(t, err)
		require.NoError(t, another.Close())
		require.NoError(t, second.Close())
		var busy *ibverbs.BusyError
		require.ErrorAs(t, client.Close(), &busy)
		require.Zero(t, rdmacm.PoolConns(pool))
		// Memory of the last connection still exists.
		third, fourth := connect(t, d.IPv4, shared, shared)
		requireTalk(t, third, fourth)
		require.NotSame(t, client.PD(), third.PD())
		require.NoError(t, third.Close())
		require.NoError(t, mr.Close())
		require.NoError(t, client.Close())
		require.NoError(t, fourth.Close())
		require.Zero(t, rdmacm.PoolConns(pool))
	}
}

// The program may provide a pool's protection domain, which stays open.
func TestPoolOnProtectionDomain(t *testing.T) {
	d := needDevice(t)
	pd, err := find(t, d.Name).AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	mr, err := pd.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	pool := newPool(t, &rdmacm.Pool{PD: pd})
	for _, config := range []*rdmacm.Config{{Queues: pool}, {Queues: pool, PD: pd}} {
		client, server := connect(t, d.IPv4, config, config)
		require.Same(t, pd, client.PD())
		require.NoError(t, client.Send(bounded(t), mr.Sub(0, 8)))
		n, err := server.Recv(bounded(t), mr.Sub(8, 8))
		require.NoError(t, err)
		require.Equal(t, 8, n)
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
}

// A pool with impossible sizes is refused and leaves nothing behind.
func TestPoolSizes(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	for name, tt := range map[string]struct {
		pool *rdmacm.Pool
		text string
	}{
		"negative sends":     {&rdmacm.Pool{Sends: -1}, "Pool.Sends is -1"},
		"negative receives":  {&rdmacm.Pool{Receives: -1}, "Pool.Receives is -1"},
		"negative size":      {&rdmacm.Pool{MessageSize: -1}, "Pool.MessageSize is -1"},
		"negative unread":    {&rdmacm.Pool{MaxUnread: -1}, "Pool.MaxUnread is -1"},
		"largest":            {&rdmacm.Pool{Sends: math.MaxInt}, "Pool.Sends is"},
		"too much memory":    {&rdmacm.Pool{Receives: 1 << 29, MessageSize: 1 << 29}, "bytes, more than"},
		"more than a device": {&rdmacm.Pool{Sends: 1 << 29}, "ibv_create_cq"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(&rdmacm.Config{Queues: tt.pool}))
			require.ErrorIs(t, err, syscall.EINVAL)
			require.ErrorContains(t, err, tt.text)
			require.Zero(t, rdmacm.PoolConns(tt.pool))
		})
	}
}

// The shared settings of connections must fit together.
func TestSharedConfigMistakes(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Sends: 40})
	pd, cq := ownQueues(t, d.Name, 64)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	ln := listenOn(t, d.IPv4)
	for name, tt := range map[string]struct {
		config rdmacm.Config
		is     error
		text   string
	}{
		"pool and domain":      {rdmacm.Config{Queues: pool, PD: pd}, syscall.EINVAL, "Config.PD is not Pool.PD"},
		"too much for a pool":  {rdmacm.Config{Queues: pool, SendQueue: 40}, syscall.ENOBUFS, "raise Pool.Sends"},
		"only SendCQ":          {rdmacm.Config{Queues: &rdmacm.PolledQueues{SendCQ: cq}}, syscall.EINVAL, "set both"},
		"only RecvCQ":          {rdmacm.Config{Queues: &rdmacm.PolledQueues{RecvCQ: cq}}, syscall.EINVAL, "set both"},
		"only SRQ":             {rdmacm.Config{Queues: &rdmacm.PolledQueues{SRQ: srq}}, syscall.EINVAL, "set both"},
		"queue of no device":   {rdmacm.Config{Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: new(ibverbs.CQ)}}, os.ErrInvalid, ""},
		"long queue":           {rdmacm.Config{Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq}, SendQueue: 1 << 20}, syscall.EINVAL, "at most"},
		"long receives":        {rdmacm.Config{Queues: pool, RecvQueue: 1 << 20}, syscall.EINVAL, "at most"},
		"negative with a pool": {rdmacm.Config{Queues: pool, SendQueue: -1}, syscall.EINVAL, "Config.SendQueue is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(&tt.config))
			require.Nil(t, conn)
			require.ErrorIs(t, err, tt.is)
			require.ErrorContains(t, err, tt.text)
		})
	}
	// The failed attempts have left nothing in the pool.
	client, server := connect(t, d.IPv4, &rdmacm.Config{Queues: pool}, &rdmacm.Config{Queues: pool})
	require.NoError(t, client.Send(bounded(t)))
	require.NoError(t, server.Close())
}

// No mistake of a caller panics.
func TestPoolMisuse(t *testing.T) {
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{})
	client, _ := connect(t, d.IPv4, &rdmacm.Config{Queues: pool}, &rdmacm.Config{Queues: pool})
	closed, _ := connect(t, d.IPv4, &rdmacm.Config{Queues: pool}, &rdmacm.Config{Queues: pool})
	require.NoError(t, closed.Close())
	for name, o := range map[string]any{
		"nil connection":  (*rdmacm.Conn)(nil),
		"zero connection": new(rdmacm.Conn), "connection": client, "closed connection": closed,
	} {
		for _, m := range misuse.Methods(o) {
			switch m.Name {
			case "Close", "Shutdown", "ID", "QP", "PD", "Done", "PeerData", "LocalAddr", "RemoteAddr":
				{
					continue
				}
			}
			for kind, args := range map[string]func(reflect.Type) reflect.Value{
				"zero": misuse.Zero, "ones": misuse.Filled(1), "negative": misuse.Filled(-1), "largest": misuse.Filled(math.MaxInt64),
			} {
				_, err := m.Call(args)
				var panicked *misuse.Panic
				require.False(t, errors.As(err, &panicked), "%s.%s of %s: %v", name, m.Name, kind, err)
				// SetPrivateData has no effect then.
				if m.Fails && name != "connection" && m.Name != "SetPrivateData" {
					require.Error(t, err, "%s.%s of %s", name, m.Name, kind)
				}
			}
		}
	}
	require.NoError(t, client.Err(), "it bears all that")
	require.False(t, client.Completed(nil))
	require.False(t, client.Completed(new(ibverbs.WC)), "the pool does that")

	segment := alloc(t, client, 64)
	for name, segments := range map[string][]ibverbs.Segment{
		"inline":          {ibverbs.InlineBytes(make([]byte, 8))},
		"none":            {{}},
		"outside":         {segment.Sub(60, 8)},
		"raw":             {ibverbs.RawSegment(1, 8, 1)},
		"too many":        {segment.Sub(0, 8), segment.Sub(8, 8)},
		"only to be read": {readOnly(t, client)},
	} {
		_, err := client.PostRecv(segments...)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
}

func readOnly(t *testing.T, c *rdmacm.Conn) ibverbs.Segment {
	t.Helper()
	mr, err := c.Alloc(8, 0)
	require.NoError(t, err)
	return mr.All()
}

// A message that is too long for the pool or for its receive ends its
// connection. It ends no other.
func TestPoolMessageTooLong(t *testing.T) {
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Receives: 4, MessageSize: 64})
	// The shared objects exist until the end.
	connect(t, d.IPv4, nil, &rdmacm.Config{Queues: pool})
	for name, tt := range map[string]struct{ message, receive int }{
		"for the pool":    {65, 100},
		"for its receive": {17, 16},
		"for no receive":  {1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			shared := &rdmacm.Config{Queues: pool}
			client, server := connect(t, d.IPv4, nil, shared)
			bystander, other := connect(t, d.IPv4, shared, shared)
			here, there := alloc(t, client, 128), alloc(t, server, 128)
			received, err := server.PostRecv(there.Sub(0, tt.receive))
			require.NoError(t, err)
			// It may succeed if only the program finds the message too long.
			_ = client.Send(ctx, here.Sub(0, tt.message))
			_, err = received.Wait(ctx)
			require.Error(t, err)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			awaitEnd(t, server)
			awaitEnd(t, client)
			require.Error(t, server.Err())
			requireTalk(t, bystander, other)
			require.NoError(t, server.Close())
		})
	}
	requireWhole(t, pool)
}

// requireTalk checks that a message arrives.
func requireTalk(t *testing.T, from, to *rdmacm.Conn) {
	t.Helper()
	ctx := bounded(t)
	out, in := alloc(t, from, 8), alloc(t, to, 8)
	sent := inBackground(func() error { return from.Send(ctx, out.All()) })
	n, err := to.Recv(ctx, in.All())
	require.NoError(t, err)
	require.NoError(t, <-sent)
	require.Equal(t, 8, n)
}

// requireWhole checks that a pool without messages has lost no receives.
func requireWhole(t *testing.T, pool *rdmacm.Pool) {
	t.Helper()
	posted, want := rdmacm.PostedReceives(pool)
	require.GreaterOrEqual(t, posted, want)
}

// A connection that never receives ends when too many messages wait for it.
// Before and after that, the other connections get on.
func TestPoolReceiverThatNeverReceives(t *testing.T) {
	const unread, rounds = 40, 100
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Receives: 8, MaxUnread: unread})
	shared := &rdmacm.Config{Queues: pool}
	lazyPeer, lazy := connect(t, d.IPv4, nil, shared)
	busyPeer, busy := connect(t, d.IPv4, nil, shared)
	ctx := bounded(t)
	out := alloc(t, lazyPeer, 64)
	flooded := inBackground(func() error {
		for {
			if err := lazyPeer.Send(ctx, out.All()); err != nil {
				return err
			}
		}
	})
	for range rounds {
		requireTalk(t, busyPeer, busy)
		requireTalk(t, busy, busyPeer)
	}
	require.Error(t, <-flooded)
	require.NoError(t, ctx.Err())
	awaitEnd(t, lazy)
	require.ErrorIs(t, lazy.Err(), syscall.ENOBUFS)
	require.ErrorContains(t, lazy.Err(), "Pool.MaxUnread")
	in := alloc(t, lazy, 64)
	for range unread { // the messages that have come can be received
		_, err := lazy.Recv(ctx, in.All())
		require.NoError(t, err)
	}
	_, err := lazy.Recv(ctx, in.All())
	require.ErrorIs(t, err, syscall.ENOBUFS)
	requireTalk(t, busyPeer, busy)
	require.NoError(t, lazy.Close())
	requireTalk(t, busyPeer, busy)
}

// Too many messages for the receives come while no goroutine takes them. They
// wait at the peers, and all arrive in order.
func TestPoolExhausted(t *testing.T) {
	const peers, messages = 4, 100
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Receives: 2, MessageSize: 64})
	ctx := bounded(t)
	var sent, received sync.WaitGroup
	for range peers {
		client, server := connect(t, d.IPv4, nil, &rdmacm.Config{Queues: pool})
		out, in := alloc(t, client, 8), alloc(t, server, 8)
		sent.Go(func() {
			for i := range messages {
				binary.NativeEndian.PutUint64(out.Bytes(), uint64(i))
				if err := client.Send(ctx, out.All()); err != nil {
					t.Error(err)
					return
				}
			}
		})
		received.Go(func() {
			for i := range messages {
				if _, err := server.Recv(ctx, in.All()); err != nil {
					t.Error(err)
					return
				}
				if got := binary.NativeEndian.Uint64(in.Bytes()); got != uint64(i) {
					t.Errorf("message %d is %d", i, got)
					return
				}
			}
		})
	}
	sent.Wait()
	received.Wait()
	requireWhole(t, pool)
}

// A peer with many connections is killed while it sends. Each connection ends,
// nothing of the pool is lost, and other connections get on.
func TestPoolPeerIsKilled(t *testing.T) {
	const conns = 200
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Sends: 20 * conns, Receives: 64, MessageSize: 1 << 14})
	shared := &rdmacm.Config{Queues: pool}
	bystander, other := connect(t, d.IPv4, shared, shared)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	peer := startPeer(t, "poolflood", ln.Addr().String(), fmt.Sprint(conns))
	var served sync.WaitGroup
	// Concurrent calls of C take threads, which Go does not give back.
	var closing sync.Mutex
	var messages atomic.Int64
	ended := make(chan error, conns)
	for range conns {
		req, err := ln.Accept(ctx)
		require.NoError(t, err)
		served.Go(func() {
			conn, err := req.Accept(ctx, inPool(shared))
			if err != nil {
				t.Error(err)
				return
			}
			in, err := conn.Alloc(1<<14, ibverbs.AccessLocalWrite)
			for err == nil {
				if _, err = conn.Recv(ctx, in.All()); err == nil {
					messages.Add(1)
				}
			}
			ended <- err
			closing.Lock()
			defer closing.Unlock()
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	require.Equal(t, "connected", peer.Line())
	soon(t, "messages come", func() bool { return messages.Load() > conns })
	peer.Signal(os.Kill)
	start := time.Now()
	for range conns {
		err := <-ended
		require.Error(t, err)
		require.NoError(t, ctx.Err())
	}
	t.Logf("%d connections ended within %v, after %d messages", conns, time.Since(start), messages.Load())
	served.Wait()
	for range 100 {
		requireTalk(t, bystander, other)
		requireTalk(t, other, bystander)
	}
	require.Equal(t, 2, rdmacm.PoolConns(pool))
	soon(t, "no receive is lost", func() bool {
		requireTalk(t, bystander, other)
		requireTalk(t, other, bystander)
		posted, want := rdmacm.PostedReceives(pool)
		return posted >= want
	})
}

// poolFlood makes connections that share a pool, and sends large messages until
// it is killed.
func poolFlood(args []string) error {
	ctx := context.Background()
	var conns int
	if _, err := fmt.Sscan(args[1], &conns); err != nil {
		return err
	}
	var pool *rdmacm.Pool
	var all []*rdmacm.Conn
	var mr *ibverbs.MR
	for range conns {
		conn, err := rdmacm.Dial(ctx, args[0], inPool(&rdmacm.Config{SendQueue: 4, Queues: queuesOf(pool)}))
		if err != nil {
			return err
		}
		all = append(all, conn)
		if pool != nil {
			continue
		}
		// The first connection has no pool. It finds the device.
		device, err := conn.ID().Device()
		if err != nil {
			return err
		}
		pd, err := device.AllocPD()
		if err != nil {
			return err
		}
		pool = &rdmacm.Pool{PD: pd}
		if mr, err = pd.Alloc(1<<14, 0); err != nil {
			return err
		}
	}
	fmt.Println("connected")
	for _, conn := range all[1:] {
		go func() {
			for conn.Send(ctx, mr.All()) == nil {
			}
		}()
	}
	return all[0].Wait(ctx)
}

// Several goroutines close connections while messages go over these and over
// others. No message of another connection arrives. None is lost, and none
// arrives twice.
func TestPoolCloseRaces(t *testing.T) {
	const pairs, rounds, size = 8, 3, 32
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Receives: 16, MessageSize: size})
	shared := &rdmacm.Config{Queues: pool}
	connect(t, d.IPv4, nil, shared) // the shared objects exist until the end
	ctx := bounded(t)
	var all sync.WaitGroup
	ln := listenOn(t, d.IPv4)
	for pair := range pairs {
		all.Go(func() {
			for round := range rounds {
				mark := uint64(pair)<<32 | uint64(round)
				if err := raceToClose(ctx, ln, shared, mark, (pair+round)%3); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, rdmacm.PoolConns(pool))
	requireWhole(t, pool)
}

// acceptNext accepts the next request.
func acceptNext(ctx context.Context, ln *rdmacm.Listener, config *rdmacm.Config) (conn *rdmacm.Conn, err error) {
	req, err := ln.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return req.Accept(ctx, inPool(config))
}

// raceToClose makes a connection and counts messages. It closes both ends while
// more messages are under way.
func raceToClose(ctx context.Context, ln *rdmacm.Listener, config *rdmacm.Config, mark uint64, closes int) error {
	var server *rdmacm.Conn
	accepted := inBackground(func() (err error) {
		server, err = acceptNext(ctx, ln, config)
		return err
	})
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(config))
	if err != nil {
		return errors.Join(err, <-accepted)
	}
	if err := <-accepted; err != nil {
		return errors.Join(err, client.Close())
	}
	results := make(chan error, 8)
	// The ends belong to one pair, or to two pairs that began at the same time.
	// Either way each end gets the messages of only one peer, in order.
	go func() { results <- sendMarked(ctx, client, mark) }()
	counted := make(chan struct{})
	go func() { results <- recvMarked(ctx, server, counted) }()
	select {
	case <-counted:
	case <-server.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	closing := []*rdmacm.Conn{client, server}
	if closes == 1 {
		closing = []*rdmacm.Conn{server, client, server}
	}
	if closes == 2 {
		closing = []*rdmacm.Conn{client, client, server, server}
	}
	for _, c := range closing {
		go func() { results <- c.Close() }()
	}
	var errs []error
	for range 2 + len(closing) {
		errs = append(errs, <-results)
	}
	return errors.Join(append(errs, client.Close(), server.Close())...)
}

// sendMarked sends numbered messages until the connection ends.
func sendMarked(ctx context.Context, c *rdmacm.Conn, mark uint64) error {
	mr, err := c.Alloc(16, 0)
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	if err != nil {
		return err
	}
	b := mr.Bytes()
	for i := uint64(0); ; i++ {
		binary.NativeEndian.PutUint64(b, mark)
		binary.NativeEndian.PutUint64(b[8:], i)
		if err := c.Send(ctx, mr.All()); err != nil {
			return ctx.Err()
		}
	}
}

// recvMarked receives until the connection ends. After some messages it closes
// counted. All messages must be from one sender.
func recvMarked(ctx context.Context, c *rdmacm.Conn, counted chan struct{}) error {
	r, err := c.NewReceiver(32)
	if err != nil {
		close(counted)
		return nil // it was closed
	}
	var first []byte
	for i := uint64(0); ; i++ {
		if i == 5 {
			close(counted)
		}
		m, err := r.Next(ctx)
		if err != nil {
			if i < 5 {
				close(counted)
			}
			return ctx.Err()
		}
		if first == nil {
			first = bytes.Clone(m.Data[:8])
		}
		if !bytes.Equal(first, m.Data[:8]) || binary.NativeEndian.Uint64(m.Data[8:]) != i {
			return fmt.Errorf("message %d is %x, of %x", i, m.Data, first)
		}
	}
}

// Many connections share a pool. A message goes over each.
func TestPoolManyConnections(t *testing.T) {
	d := needDevice(t)
	conns := 50
	if testdevice.Soft() {
		conns = 200
	}
	if n := os.Getenv(poolConnsEnv); n != "" {
		_, err := fmt.Sscan(n, &conns)
		require.NoError(t, err)
	}
	pool := newPool(t, &rdmacm.Pool{Sends: 2 * 2 * conns, Receives: 256, MessageSize: 64})
	shared := &rdmacm.Config{Queues: pool, SendQueue: 1, RecvQueue: 1, KeepAlive: -1}
	ctx, cancel := context.WithTimeout(t.Context(), scalePatience)
	defer cancel()
	ln := listenOn(t, d.IPv4)
	began := time.Now()
	var servers []*rdmacm.Conn
	var clients []*rdmacm.Conn
	for range conns {
		accepted := acceptOne(ctx, ln, shared)
		client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(shared))
		require.NoError(t, err)
		a := <-accepted
		require.NoError(t, a.err)
		clients, servers = append(clients, client), append(servers, a.conn)
	}
	t.Logf("%d connections in %v", conns, time.Since(began).Round(time.Millisecond))
	out, in := alloc(t, clients[0], 8), alloc(t, servers[0], 8)
	for i := range conns {
		binary.NativeEndian.PutUint64(out.Bytes(), uint64(i))
		require.NoError(t, clients[i].Send(ctx, out.All()))
	}
	for i := range conns {
		n, err := servers[i].Recv(ctx, in.All())
		require.NoError(t, err)
		require.Equal(t, 8, n)
		require.Equal(t, uint64(i), binary.NativeEndian.Uint64(in.Bytes()))
	}
	u, err := measure()
	require.NoError(t, err)
	t.Logf("%d connections with both ends here: %d threads, %d KiB resident", conns, u.Threads, u.RSS)
	for i := range conns {
		require.NoError(t, clients[i].Close())
		require.NoError(t, servers[i].Close())
	}
	t.Logf("closed after %v", time.Since(began).Round(time.Millisecond))
	require.Zero(t, rdmacm.PoolConns(pool))
}

// poolConnsEnv is the number of connections that TestPoolManyConnections makes.
const poolConnsEnv = "VERBENA_POOL_CONNS"

// A transfer that fails affects only its own connection. So does one whose
// context ends.
func TestPoolTransferFails(t *testing.T) {
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{})
	shared := &rdmacm.Config{Queues: pool}
	client, server := connect(t, d.IPv4, shared, shared)
	bystander, other := connect(t, d.IPv4, shared, shared)
	ctx := bounded(t)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	waiting, err := client.PostRecv(here.Sub(0, 8))
	require.NoError(t, err)
	_, err = waiting.Wait(short(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	wrong := there.Remote()
	wrong.RKey ^= 0xff00
	require.ErrorIs(t, client.Write(ctx, wrong, here.All()), ibverbs.WCRemoteAccess)
	_, err = waiting.Wait(ctx)
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess)
	require.Error(t, client.Send(ctx))
	_, err = client.PostRecv(here.Sub(0, 8))
	// The connection has ended. Its queue pair may not have reached the error
	// state.
	if err == nil {
		_, err = client.Recv(ctx, here.Sub(0, 8))
	}
	require.Error(t, err)
	requireTalk(t, bystander, other)
	requireTalk(t, other, bystander)
}

// ownQueues returns a protection domain, and a completion queue with a channel.
// The test closes both at the end.
func ownQueues(t testing.TB, name string, entries int) (*ibverbs.PD, *ibverbs.CQ) {
	t.Helper()
	device := find(t, name)
	require.NotNil(t, device)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pd.Close()) })
	ch, err := device.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: entries, Channel: ch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cq.Close()) })
	return pd, cq
}

// polled is a program that polls a completion queue for its connections.
type polled struct {
	stop    context.CancelFunc
	stopped chan struct{}

	mu    sync.Mutex
	conns map[uint32]*rdmacm.Conn
	rest  []ibverbs.WC // which no connection wanted
}

func poll(t *testing.T, cq *ibverbs.CQ, conns ...*rdmacm.Conn) *polled {
	p := &polled{stopped: make(chan struct{}), conns: map[uint32]*rdmacm.Conn{}}
	for _, c := range conns {
		p.conns[c.QP().Num()] = c
	}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	go func() {
		defer close(p.stopped)
		wcs := make([]ibverbs.WC, 8)
		for {
			n, err := cq.Wait(ctx, wcs)
			if err != nil {
				return
			}
			p.mu.Lock()
			for i := range wcs[:n] {
				if !p.conns[wcs[i].QPNum()].Completed(&wcs[i]) {
					p.rest = append(p.rest, wcs[i])
				}
			}
			p.mu.Unlock()
		}
	}()
	t.Cleanup(p.end)
	return p
}

func (p *polled) end() { p.stop(); <-p.stopped }

func (p *polled) take() []ibverbs.WC {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := p.rest
	p.rest = nil
	return rest
}

// Connections on the program's completion queues do all that others do. The
// program passes completions on.
func TestOwnCompletionQueues(t *testing.T) {
	d := needDevice(t)
	pd, cq := ownQueues(t, d.Name, 256)
	own := &rdmacm.Config{PD: pd, Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq}}
	ctx := bounded(t)
	first, firstPeer := connect(t, d.IPv4, own, nil)
	second, secondPeer := connect(t, d.IPv4, own, own)
	p := poll(t, cq, first, second, secondPeer)
	requireTalk(t, first, firstPeer)
	requireTalk(t, firstPeer, first)
	requireTalk(t, second, secondPeer)
	requireTalk(t, secondPeer, second)
	here, there := alloc(t, first, 64), alloc(t, firstPeer, 64)
	require.NoError(t, first.Write(ctx, there.Remote(), here.All()))
	require.NoError(t, first.Read(ctx, here.All(), there.Remote()))
	rdmacm.CheckPeer(first)
	require.NoError(t, first.Err())
	require.Empty(t, p.take())

	// The connection leaves the program's own requests alone.
	batch := batchOf(t, 1, 1)
	require.NoError(t, batch.Write(1<<63|5, there.Remote(), ibverbs.SendSignaled, here.All()))
	_, err := first.QP().PostSend(batch)
	require.NoError(t, err)
	var rest []ibverbs.WC
	soon(t, "the completion comes", func() bool { rest = append(rest, p.take()...); return len(rest) > 0 })
	require.Len(t, rest, 1)
	require.Equal(t, uint64(1<<63|5), rest[0].ID())

	// A request of the program's that fails ends its connection.
	wrong := there.Remote()
	wrong.RKey ^= 0xff00
	batch.Reset()
	require.NoError(t, batch.Write(1<<63|6, wrong, ibverbs.SendSignaled, here.All()))
	waiting, err := first.PostRecv(here.Sub(0, 8))
	require.NoError(t, err)
	_, err = first.QP().PostSend(batch)
	require.NoError(t, err)
	awaitEnd(t, first)
	require.ErrorIs(t, first.Err(), ibverbs.WCRemoteAccess)
	_, err = waiting.Wait(ctx)
	require.ErrorIs(t, err, ibverbs.WCRemoteAccess)
	requireTalk(t, second, secondPeer)

	// Close ends the waits, even if the program does not poll.
	p.end()
	left, err := second.PostRecv(alloc(t, second, 8).All())
	require.NoError(t, err)
	ended := inBackground(func() error { _, err := left.Wait(ctx); return err })
	require.NoError(t, second.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
	// The completions of a closed connection have no effect.
	wcs := make([]ibverbs.WC, 32)
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	for i := range wcs[:n] {
		second.Completed(&wcs[i])
		require.False(t, first.Completed(&wcs[i]) && wcs[i].QPNum() != first.QP().Num())
	}
}

// The program receives for connections on its shared receive queue.
func TestOwnSharedReceives(t *testing.T) {
	const conns, receives = 3, 8
	d := needDevice(t)
	d.Have(t, testdevice.SRQs)
	pd, cq := ownQueues(t, d.Name, 256)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: receives})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	mr, err := pd.Alloc(receives*8, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	batch, err := ibverbs.NewRecvBatch(receives, 1)
	require.NoError(t, err)
	for i := range receives {
		require.NoError(t, batch.Recv(1<<63|uint64(i), mr.Sub(8*i, 8)))
	}
	_, err = srq.PostRecv(batch)
	require.NoError(t, err)

	config := &rdmacm.Config{PD: pd, Queues: &rdmacm.PolledQueues{SendCQ: cq, RecvCQ: cq, SRQ: srq}}
	var peers, ends []*rdmacm.Conn
	for range conns {
		peer, end := connect(t, d.IPv4, nil, config)
		peers, ends = append(peers, peer), append(ends, end)
	}
	p := poll(t, cq, ends...)
	ctx := bounded(t)
	_, err = ends[0].PostRecv(mr.Sub(0, 8))
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = ends[0].Recv(ctx, mr.Sub(0, 8))
	require.ErrorContains(t, err, "PolledQueues.SRQ")
	_, err = ends[0].NewReceiver(8)
	require.ErrorContains(t, err, "PolledQueues.SRQ")
	for i, peer := range peers {
		out := alloc(t, peer, 8)
		out.Bytes()[0] = byte(i)
		require.NoError(t, peer.Send(ctx, out.All()))
		requireSent := alloc(t, peer, 8)
		sent := inBackground(func() error { return ends[i].Send(ctx) })
		_, err := peer.Recv(ctx, requireSent.All())
		require.NoError(t, err)
		require.NoError(t, <-sent)
	}
	var rest []ibverbs.WC
	soon(t, "the messages come", func() bool { rest = append(rest, p.take()...); return len(rest) >= conns })
	for _, wc := range rest {
		require.Equal(t, ibverbs.WCSuccess, wc.Status())
		i := int(wc.ID() &^ (1 << 63))
		require.Equal(t, ends[mr.Bytes()[8*i]].QP().Num(), wc.QPNum())
	}
	for _, end := range ends {
		require.NoError(t, end.Close())
	}
}

// Connections come and go. Each may be the first or the last connection of the
// pool.
func TestPoolComesAndGoes(t *testing.T) {
	const dialers, rounds = 4, 20
	d := needDevice(t)
	shared := &rdmacm.Config{Queues: newPool(t, &rdmacm.Pool{Receives: 4})}
	ln := listenOn(t, d.IPv4)
	ctx := bounded(t)
	var all, dials sync.WaitGroup
	for range dialers {
		all.Go(func() {
			for {
				req, err := ln.Accept(ctx)
				if err != nil {
					return
				}
				c, err := req.Accept(ctx, inPool(shared))
				if err == nil {
					_ = c.Send(ctx)
					err = c.Close()
				}
				if err != nil && !errors.Is(err, syscall.ECONNRESET) {
					t.Error(err)
				}
			}
		})
		dials.Go(func() {
			for range rounds {
				c, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(shared))
				if err == nil {
					_, _ = c.Recv(ctx)
					err = c.Close()
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	dials.Wait()
	require.NoError(t, ln.Close())
	all.Wait()
}

// When the pool drops a message, no later message is received. Otherwise there
// would be a gap.
func TestPoolHasNoGap(t *testing.T) {
	const messages = 40
	d := needDevice(t)
	for name, tt := range map[string]struct {
		unread        int
		third, others int // bytes of messages
		cause         error
	}{
		"too many": {4, 8, 8, syscall.ENOBUFS},
		"too long": {messages, 8, 4, ibverbs.WCLocalLength},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			pool := newPool(t, &rdmacm.Pool{Receives: messages, MessageSize: 8, MaxUnread: tt.unread})
			client, server := connect(t, d.IPv4, nil, &rdmacm.Config{Queues: pool})
			out, in := alloc(t, client, 8), alloc(t, server, 8)
			for i := range messages {
				out.Bytes()[0] = byte(i)
				n := tt.others
				if i == 2 {
					n = tt.third
				}
				if client.Send(ctx, out.Sub(0, n)) != nil {
					break // the server has looked, and has ended
				}
			}
			var err error
			received := 0
			for ; err == nil; received++ {
				clear(in.Bytes())
				if _, err = server.Recv(ctx, in.Sub(0, tt.others)); err == nil {
					require.EqualValues(t, received, in.Bytes()[0])
				}
			}
			require.ErrorIs(t, err, tt.cause)
			for range messages {
				_, err := server.Recv(ctx, in.Sub(0, tt.others))
				require.ErrorIs(t, err, tt.cause, "message %d came behind the one that was dropped", in.Bytes()[0])
			}
		})
	}
}

// Ended may use the connection, even if the pool ends it.
func TestPoolEndedUsesConnection(t *testing.T) {
	d := needDevice(t)
	pool := newPool(t, &rdmacm.Pool{Receives: 8, MaxUnread: 1})
	var server *rdmacm.Conn
	ended := make(chan error, 1)
	config := &rdmacm.Config{
		Queues: pool,
		Setup:  func(c *rdmacm.Conn) error { server = c; return nil },
		Ended:  func(error) { _, err := server.PostRecv(); ended <- err },
	}
	client, _ := connect(t, d.IPv4, nil, config)
	ctx := bounded(t)
	for range 3 {
		_ = client.Send(ctx) // it fails when the server has ended
	}
	select {
	case <-ended:
	case <-ctx.Done():
		require.FailNow(t, "it waits for ever")
	}
	require.ErrorIs(t, server.Err(), syscall.ENOBUFS)
}
