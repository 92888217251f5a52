package rdmacm_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

const (
	// scaleEnv says how many connections TestScale makes.
	scaleEnv      = "VERBENA_SCALE"
	scaleDefault  = 200
	scalePatience = 5 * time.Minute
	// endBound is how soon every connection must have ended after its peer was
	// killed.
	endBound = 10 * time.Second
	// spareThreads is how many threads the runtime may start for reasons that
	// connections have no part in.
	spareThreads = 8
)

// crowdProcess is the peer that makes the connections. With two hosts, it is on
// the other one.
type crowdProcess struct {
	cmd *exec.Cmd
	in  io.Writer
	out *json.Decoder
}

func startCrowd(t *testing.T, address string) *crowdProcess {
	t.Helper()
	args := []string{"/proc/self/exe"}
	if twoHosts() {
		self, err := os.Executable()
		require.NoError(t, err)
		args = []string{"ip", "netns", "exec", "ns1", self}
	}
	c := &crowdProcess{cmd: exec.Command(args[0], args[1:]...)}
	c.cmd.Env = append(os.Environ(), crowdEnv+"="+address)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.in, c.out = in, json.NewDecoder(bufio.NewReader(out))
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // if it was not killed yet
		_ = c.cmd.Wait()         // says that it was killed
	})
	return c
}

func twoHosts() bool { return os.Getenv("VERBENA_VM_HOSTS") == "2" }

// grow makes the crowd have so many connections, and returns what it takes.
func (c *crowdProcess) grow(t *testing.T, conns int) (u usage) {
	t.Helper()
	_, err := fmt.Fprintln(c.in, conns)
	require.NoError(t, err)
	require.NoError(t, c.out.Decode(&u))
	return u
}

// Many connections through one listener take no threads, and each ends by
// itself when the peer is killed.
func TestScale(t *testing.T) {
	d := needDevice(t)
	most := scaleDefault
	if n := os.Getenv(scaleEnv); n != "" {
		var err error
		most, err = strconv.Atoi(n)
		require.NoError(t, err)
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
	defer s.close(t)
	accepting := make(chan struct{})
	defer func() { require.NoError(t, ln.Close()); <-accepting }()
	go func() { defer close(accepting); s.serve(ctx, ln) }()

	peer := startCrowd(t, ln.Addr().String())
	ours, theirs := map[int]usage{}, map[int]usage{}
	for _, n := range []int{0, 1, few, most} {
		start := time.Now()
		theirs[n] = peer.grow(t, n)
		s.waitFor(ctx, t, n)
		took := time.Since(start)
		ours[n], err = measure()
		require.NoError(t, err)
		t.Logf("%d connections, in %v: threads %d here, %d there; a message there and back over one of them takes %v",
			n, took.Round(time.Millisecond), ours[n].Threads, theirs[n].Threads, theirs[n].RoundTrip.Round(time.Microsecond))
	}
	for _, n := range []int{1, few, most} { // make bench collects these
		fmt.Printf("| connections of rdmacm: threads of the server | %d | | %d | |\n", n, ours[n].Threads)
		fmt.Printf("| connections of rdmacm: a message there and back over one | %d | | %d us | |\n", n, theirs[n].RoundTrip.Microseconds())
	}
	t.Logf("each here: %s", ours[most].each(ours[few], most-few))
	t.Logf("each there: %s", theirs[most].each(theirs[few], most-few))
	require.LessOrEqual(t, ours[most].Threads, ours[few].Threads+spareThreads)
	require.LessOrEqual(t, theirs[most].Threads, theirs[few].Threads+spareThreads)

	start := time.Now()
	require.NoError(t, peer.cmd.Process.Kill())
	first, last := s.ended(ctx, t, start)
	t.Logf("the peer was killed: the first connection ended after %v, the last one after %v", first, last)
	require.Less(t, last, endBound)
}

// scaleServer serves every connection in a goroutine.
type scaleServer struct {
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
			err := serveOne(ctx, req, func(conn *rdmacm.Conn, number uint64) {
				s.mu.Lock()
				s.conns, s.numbers[number] = append(s.conns, conn), true
				s.mu.Unlock()
				s.answered <- struct{}{}
			})
			s.mu.Lock()
			defer s.mu.Unlock()
			s.errs = append(s.errs, err)
		})
	}
}

// waitFor waits until so many connections have been answered.
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

// ended waits until every connection is over, and every wait on it.
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
