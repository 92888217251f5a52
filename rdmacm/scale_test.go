// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

const (
	// scaleEnv is the number of connections that TestScale makes.
	scaleEnv      = "VERBENA_SCALE"
	scaleDefault  = 200
	scalePatience = 5 * time.Minute
	// pooledKiB is the memory that each connection of a pool may take.
	pooledKiB = 20
)

func twoHosts() bool { return os.Getenv("VERBENA_VM_HOSTS") == "2" }

// grow makes the crowd have conns connections and returns what it takes from
// the system.
func grow(t *testing.T, crowd *process.Process, conns int) (u usage) {
	t.Helper()
	_, err := fmt.Fprintln(crowd.Stdin, conns)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(crowd.Line()), &u))
	return u
}

// Many connections through one listener take no threads. Each ends without help
// when the peer is killed.
func TestScale(t *testing.T) {
	d := needDevice(t)
	t.Run("a queue each", func(t *testing.T) { requireScale(t, d, false) })
	t.Run("a pool", func(t *testing.T) { requireScale(t, d, true) })
}

func requireScale(t *testing.T, d testdevice.Device, pooled bool) {
	most := scaleDefault
	if n := os.Getenv(scaleEnv); n != "" {
		var err error
		most, err = strconv.Atoi(n)
		require.NoError(t, err)
	}
	if pooled {
		d.Have(t, testdevice.SRQs)
	}
	few := most / 10
	here := d.IPv4
	if twoHosts() {
		here = netip.MustParseAddr("198.51.100.1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), scalePatience)
	defer cancel()
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(here, 0).String(), nil)
	require.NoError(t, err)
	s := &scaleServer{numbers: map[uint64]bool{}, answered: make(chan struct{}, most)}
	kind, args := "rdmacm", []string{ln.Addr().String()}
	if pooled {
		kind, args = "a pool", append(args, fmt.Sprint(most))
		device, err := ln.Device() // with two hosts, not the test's
		require.NoError(t, err)
		s.pool = crowdPool(most)
		s.pool.PD, err = device.AllocPD()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.pool.PD.Close()) })
		s.memory, err = s.pool.PD.Alloc(16*most, ibverbs.AccessLocalWrite)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.memory.Close()) })
	}
	defer s.close(t)
	accepting := make(chan struct{})
	defer func() { require.NoError(t, ln.Close()); <-accepting }()
	go func() { defer close(accepting); s.serve(ctx, ln) }()

	peer := startPeer(t, "crowd", args...)
	ours, theirs := map[int]usage{}, map[int]usage{}
	for _, n := range []int{0, 1, few, most} {
		start := time.Now()
		theirs[n] = grow(t, peer, n)
		s.waitFor(ctx, t, n)
		took := time.Since(start)
		ours[n], err = measure()
		require.NoError(t, err)
		t.Logf("%d connections, in %v: threads %d here, %d there; a message there and back over one of them takes %v",
			n, took.Round(time.Millisecond), ours[n].Threads, theirs[n].Threads, theirs[n].RoundTrip.Round(time.Microsecond))
	}
	for _, n := range []int{1, few, most} { // make bench collects these
		fmt.Printf("| connections of %s: threads of the server | %d | | %d | |\n", kind, n, ours[n].Threads)
		fmt.Printf("| connections of %s: a message there and back over one | %d | | %d us | |\n", kind, n, theirs[n].RoundTrip.Microseconds())
	}
	fmt.Printf("| connections of %s: KiB of the server for each beyond %d | %d | | %d | |\n", kind, few, most, (ours[most].RSS-ours[few].RSS)/(most-few))
	t.Logf("each here: %s", ours[most].each(ours[few], most-few))
	t.Logf("each there: %s", theirs[most].each(theirs[few], most-few))
	// The runtime may start threads for other reasons, above all where the
	// system takes the processor from those that are in C.
	spare := most / 4
	require.LessOrEqual(t, ours[most].Threads, ours[few].Threads+spare)
	require.LessOrEqual(t, theirs[most].Threads, theirs[few].Threads+spare)
	// The device in user space and the race detector take memory of their own.
	if pooled && most >= 1000 && !testdevice.Soft() && !raceDetector {
		require.LessOrEqual(t, ours[most].RSS-ours[few].RSS, pooledKiB*(most-few))
	}

	start := time.Now()
	peer.Signal(os.Kill)
	first, last := s.ended(ctx, t, start)
	t.Logf("the peer was killed: the first connection ended after %v, the last one after %v", first, last)
}

// sharing holds what a connection shares with others in a pool.
type sharing struct {
	pool   *rdmacm.Pool
	memory ibverbs.Segment // its part
}

// scaleServer serves every connection in a goroutine.
type scaleServer struct {
	pool     *rdmacm.Pool // nil if there is none
	memory   *ibverbs.MR  // of the pool's domain, 16 bytes for each connection
	next     atomic.Int64 // how many have theirs
	answered chan struct{}
	served   sync.WaitGroup

	mu      sync.Mutex
	conns   []*rdmacm.Conn
	numbers map[uint64]bool
	errs    []error
}

func (s *scaleServer) serve(ctx context.Context, ln *rdmacm.Listener) {
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			return
		}
		s.served.Go(func() {
			shared := sharing{pool: s.pool}
			if s.pool != nil {
				shared.memory = s.memory.Sub(16*int(s.next.Add(1)-1), 16)
			}
			a, err := accept(ctx, req, shared)
			if err != nil {
				s.ends(err)
				return
			}
			// Accept has made this goroutine's stack larger than the answers
			// need.
			s.served.Go(func() { s.ends(a.serve(ctx, s.heard)) })
		})
	}
}

// heard notes a connection's first message.
func (s *scaleServer) heard(conn *rdmacm.Conn, number uint64) {
	s.mu.Lock()
	s.conns, s.numbers[number] = append(s.conns, conn), true
	s.mu.Unlock()
	s.answered <- struct{}{}
}

// ends notes the error that ended a connection.
func (s *scaleServer) ends(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// waitFor waits until n connections have been answered.
func (s *scaleServer) waitFor(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	for {
		s.mu.Lock()
		have := len(s.numbers)
		s.mu.Unlock()
		if have == n {
			return
		}
		select {
		case <-s.answered:
		case <-ctx.Done():
			require.FailNow(t, "not all were answered", "%d of %d: %v", have, n, s.errs)
		}
	}
}

// ended waits until every connection is over and every wait has ended.
func (s *scaleServer) ended(ctx context.Context, t *testing.T, start time.Time) (first, last time.Duration) {
	t.Helper()
	for i, conn := range s.conns {
		select {
		case <-conn.Done():
		case <-ctx.Done():
			require.FailNow(t, "still up", "connection %d", i)
		}
		require.Error(t, conn.Err())
		if i == 0 {
			first = time.Since(start)
		}
	}
	s.served.Wait()
	require.Len(t, s.errs, len(s.conns))
	for _, err := range s.errs {
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	}
	return first, time.Since(start)
}

func (s *scaleServer) close(t *testing.T) {
	t.Helper()
	for _, conn := range s.conns {
		require.NoError(t, conn.Close())
	}
}

// usage is what a process takes from the system.
type usage struct {
	Threads, Files, Maps int
	RSS, Heap, Stacks    int           // KiB
	RoundTrip            time.Duration // the median of the first connection's
}

func measure() (u usage, err error) {
	runtime.GC()
	runtime.GC() // what cleanups of the first have freed
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	u.Heap, u.Stacks = int(mem.HeapAlloc>>10), int(mem.StackInuse>>10)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		for name, n := range map[string]*int{"Threads": &u.Threads, "VmRSS": &u.RSS} {
			if rest, ok := strings.CutPrefix(line, name+":"); ok {
				fmt.Sscan(rest, n)
			}
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return u, err
	}
	u.Maps = strings.Count(string(maps), "\n")
	files, err := os.ReadDir("/proc/self/fd")
	u.Files = len(files)
	return u, err
}

// each returns what each of n connections has added.
func (u usage) each(before usage, n int) string {
	per := func(after, before int) float64 { return float64(after-before) / float64(n) }
	return fmt.Sprintf("%.1f KiB resident (%.1f of Go's heap, %.1f of stacks), %.2f descriptors, %.2f mappings",
		per(u.RSS, before.RSS), per(u.Heap, before.Heap), per(u.Stacks, before.Stacks),
		per(u.Files, before.Files), per(u.Maps, before.Maps))
}

// crowd connects to an address as often as standard input says. It prints what
// that took and waits for more until it is killed. With a number after the
// address, all connections but the first share a pool for that many.
func crowd(args []string) error {
	address := args[0]
	ctx := context.Background()
	conns := 0
	var first *client
	var pool *rdmacm.Pool
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		want, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		if conns == 0 && want > 0 {
			if first, err = join(ctx, address, nil, 0); err != nil {
				return err
			}
			conns = 1
			if len(args) > 1 { // the first connection has no pool
				if pool, err = poolOf(args[1]); err != nil {
					return err
				}
			}
		}
		if err := joinMany(ctx, address, pool, conns, want); err != nil {
			return err
		}
		conns = want
		u, err := measure()
		if err != nil {
			return err
		}
		if first != nil {
			if u.RoundTrip, err = first.roundTrip(ctx); err != nil {
				return err
			}
		}
		if err := json.NewEncoder(os.Stdout).Encode(u); err != nil {
			return err
		}
	}
	return nil
}

// crowdPool returns the configuration of a pool for conns connections.
func crowdPool(conns int) *rdmacm.Pool {
	return &rdmacm.Pool{Sends: 17 * (conns + 1), MessageSize: 64}
}

// poolOf returns a pool for conns connections.
func poolOf(conns string) (*rdmacm.Pool, error) {
	n, err := strconv.Atoi(conns)
	if err != nil {
		return nil, err
	}
	return crowdPool(n), nil
}

// queuesOf returns a pool as the queues of a config. It returns nil for no
// pool.
func queuesOf(pool *rdmacm.Pool) rdmacm.Queues {
	if pool == nil {
		return nil
	}
	return pool
}

// roundTrip returns how long a message and its answer take between two
// goroutines that wait. It is the median of many messages.
func (c *client) roundTrip(ctx context.Context) (time.Duration, error) {
	times := make([]time.Duration, 101)
	for i := range times {
		begin := time.Now()
		if err := c.ask(ctx, uint64(i)); err != nil {
			return 0, err
		}
		times[i] = time.Since(begin)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

// joinMany makes the connections from number first up to limit, a few at a
// time.
func joinMany(ctx context.Context, address string, pool *rdmacm.Pool, first, limit int) error {
	const atOnce = 8
	results := make(chan error, atOnce)
	for i := range atOnce {
		go func() {
			for number := first + i; number < limit; number += atOnce {
				c, err := join(ctx, address, pool, uint64(number))
				if err != nil {
					results <- fmt.Errorf("connection %d: %w", number, err)
					return
				}
				// The message never comes.
				go func() { _, _ = c.conn.Recv(ctx, c.mr.Sub(8, 8)) }()
			}
			results <- nil
		}()
	}
	var errs []error
	for range atOnce {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// client is a connection that asks for numbers.
type client struct {
	conn *rdmacm.Conn
	mr   ibverbs.Segment
	next *rdmacm.Receive
}

// join connects and lets the peer send a number back.
func join(ctx context.Context, address string, pool *rdmacm.Pool, number uint64) (*client, error) {
	c := &client{}
	var err error
	if c.conn, err = rdmacm.Dial(ctx, address, inPool(&rdmacm.Config{Queues: queuesOf(pool), Setup: receiveFirst(&c.mr, &c.next)})); err != nil {
		return nil, err
	}
	return c, c.ask(ctx, number)
}

// ask sends a number and waits for the answer.
func (c *client) ask(ctx context.Context, number uint64) (err error) {
	if c.next == nil {
		if c.next, err = c.conn.PostRecv(c.mr.Sub(8, 8)); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint64(c.mr.Bytes(), number)
	if err := c.conn.Send(ctx, c.mr.Sub(0, 8)); err != nil {
		return err
	}
	_, err = c.next.Wait(ctx)
	c.next = nil
	if err != nil {
		return err
	}
	if got := binary.NativeEndian.Uint64(c.mr.Bytes()[8:]); got != ^number {
		return fmt.Errorf("answer %#x", got)
	}
	return nil
}

// receiveFirst is a Config.Setup that posts a receive into the second half of
// 16 bytes. It allocates them if there are none.
func receiveFirst(memory *ibverbs.Segment, first **rdmacm.Receive) func(*rdmacm.Conn) error {
	return func(c *rdmacm.Conn) (err error) {
		if memory.Len() == 0 {
			mr, err := c.Alloc(16, ibverbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			*memory = mr.All()
		}
		*first, err = c.PostRecv(memory.Sub(8, 8))
		return err
	}
}

// answering is a connection that answers messages.
type answering struct {
	conn *rdmacm.Conn
	mr   ibverbs.Segment
	next *rdmacm.Receive
}

func accept(ctx context.Context, req *rdmacm.Request, shared sharing) (a answering, err error) {
	a.mr = shared.memory
	config := rdmacm.Config{Queues: queuesOf(shared.pool), KeepAlive: -1} // the system alone tells that the peer was killed
	if shared.pool != nil {
		config.SendQueue, config.RecvQueue = 1, 1 // as ucmatose's
	}
	config.Setup = receiveFirst(&a.mr, &a.next)
	a.conn, err = req.Accept(ctx, inPool(&config))
	return a, err
}

// serve answers every message, reports the first one, and returns the error
// that ended the connection.
func (a *answering) serve(ctx context.Context, answered func(*rdmacm.Conn, uint64)) error {
	for first := true; ; first = false {
		if _, err := a.next.Wait(ctx); err != nil {
			return err
		}
		number := binary.NativeEndian.Uint64(a.mr.Bytes()[8:])
		var err error
		if a.next, err = a.conn.PostRecv(a.mr.Sub(8, 8)); err != nil {
			return err
		}
		binary.NativeEndian.PutUint64(a.mr.Bytes(), ^number)
		if err := a.conn.Send(ctx, a.mr.Sub(0, 8)); err != nil {
			return err
		}
		if first {
			answered(a.conn, number)
		}
	}
}
