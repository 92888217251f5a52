// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// These names of cmtest are used everywhere in the tests.
const (
	patience           = cmtest.Patience
	maxRequestData     = cmtest.MaxRequestData
	maxReplyData       = cmtest.MaxReplyData
	maxRejectData      = cmtest.MaxRejectData
	maxDatagramRequest = cmtest.MaxDatagramRequest
	maxDatagramReply   = cmtest.MaxDatagramReply
)

var (
	needDevice   = cmtest.NeedDevice
	bounded      = cmtest.Bounded
	canceled     = cmtest.Canceled
	inBackground = cmtest.InBackground
	padded       = cmtest.Padded
	find         = cmtest.Find
	connect      = cmtest.Connect
	inPool       = cmtest.Pooled
	newChannel   = cmtest.NewChannel
	newID        = cmtest.NewID
	next         = cmtest.Next
	soon         = cmtest.Soon

	manyProcessors = cmtest.ManyProcessors
)

// dialWith dials with a dialer, whose config may be put into the pool.
func dialWith(ctx context.Context, d rdmacm.Dialer, address string, config *rdmacm.Config) (*rdmacm.Conn, error) {
	if config = inPool(config); config != nil {
		d.Config = *config
	}
	return d.Dial(ctx, address)
}

// manual returns queues for a queue pair that verbs create, if byVerbs is true.
func manual(byVerbs bool) rdmacm.Queues {
	if byVerbs {
		return new(rdmacm.VerbsQP)
	}
	return nil
}

// poolEnv makes all connections of the tests share a pool, unless they have a
// protection domain or queues of their own.
const poolEnv = "VERBENA_TEST_POOL"

// needOwnReceives skips the test where connections share receives. Then a
// message without a receive does not wait at the peer.
func needOwnReceives(t testing.TB) {
	t.Helper()
	if cmtest.SharesPool() {
		t.Skip("a message without a receive waits in the pool")
	}
}

// needOwnDomain skips the test where connections share a protection domain.
// None of the connections closes it.
func needOwnDomain(t testing.TB) {
	t.Helper()
	if cmtest.SharesPool() {
		t.Skip("the protection domain is the pool's")
	}
}

// TestMain lets a test run this test binary as its peer.
func TestMain(m *testing.M) {
	if os.Getenv(poolEnv) != "" {
		cmtest.SharePool(&rdmacm.Pool{Sends: 1 << 14, Receives: 64, MessageSize: 1 << 16})
	}
	process.Become(map[string]process.Program{
		"victim": peer(victim), "crowd": peer(crowd), "soak": peer(soakClients), "far": peer(far),
		"server": peer(playServer), "flood": peer(playFlood), "asker": peer(playAsker),
		"poolflood": peer(poolFlood), "caller": peer(callFrom), "container": peer(container), "opener": peer(opener), "grouped": peer(grouped),
	})
	os.Exit(m.Run())
}

// peer returns a program that reports how f ended.
func peer(f func(args []string) error) process.Program {
	return func(args []string, _, stderr io.Writer) int {
		if err := f(args); err != nil {
			fmt.Fprintln(stderr, args, err)
			return 1
		}
		return 0
	}
}

// peerCommand returns the command of such a program. With two hosts, the
// program runs on the other one.
func peerCommand(t testing.TB, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := process.Command(t, program, args...)
	if twoHosts() {
		cmd = exec.Command("ip", slices.Concat([]string{"netns", "exec", farNamespace}, cmd.Args)...)
		cmd.Env = process.Env(program)
	}
	return cmd
}

func startPeer(t testing.TB, program string, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, peerCommand(t, program, args...))
}

// tell lets a peer go on.
func tell(t testing.TB, p *process.Process) {
	t.Helper()
	_, err := fmt.Fprintln(p.Stdin)
	require.NoError(t, err)
}

// listenOn returns a listener on a free port. The test closes it at the end.
func listenOn(t testing.TB, ip netip.Addr) *rdmacm.Listener {
	t.Helper()
	ln, err := rdmacm.Listen(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// accepted is the result of a request.
type accepted struct {
	conn *rdmacm.Conn
	req  *rdmacm.Request
	err  error
}

// acceptOne accepts the next request in the background.
func acceptOne(ctx context.Context, ln *rdmacm.Listener, config *rdmacm.Config) <-chan accepted {
	result := make(chan accepted, 1)
	go func() {
		var a accepted
		if a.req, a.err = ln.Accept(ctx); a.err == nil {
			a.conn, a.err = a.req.Accept(ctx, inPool(config))
		}
		result <- a
	}()
	return result
}

// awaitEnd waits until a connection has ended.
func awaitEnd(t testing.TB, conn interface{ Done() <-chan struct{} }) {
	t.Helper()
	cmtest.Take(t, conn.Done(), fmt.Sprintf("the end of a %T", conn))
}

// alloc returns memory of a connection. The peer may read and write it.
func alloc(t testing.TB, conn *rdmacm.Conn, size int) *ibverbs.MR {
	t.Helper()
	mr, err := conn.Alloc(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	return mr
}

// countdown is a context that ends when it is checked for the nth time. Each
// step that waits checks it at least once. countdown notes the functions of the
// package that check it.
type countdown struct {
	context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	left  int
	stage string // of the last look before the end
}

func newCountdown(t *testing.T, n int) *countdown {
	c := &countdown{left: n}
	c.Context, c.cancel = context.WithCancel(bounded(t))
	t.Cleanup(c.cancel)
	return c
}

func (c *countdown) Done() <-chan struct{} { c.tick(looker()); return c.Context.Done() }
func (c *countdown) Err() error            { c.tick(looker()); return c.Context.Err() }

// tick counts one check.
func (c *countdown) tick(stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		c.cancel()
	}
	if c.left >= 0 {
		c.stage = stage
	}
}

// last returns the stage at which the context has ended, and whether it has
// ended.
func (c *countdown) last() (stage string, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Context.Err() == nil || c.stage == "" {
		return "", false
	}
	return c.stage, true
}

func (c *countdown) ended() bool {
	_, ended := c.last()
	return ended
}

// looker returns the function of the package that checks the context.
func looker() string {
	const module = "github.com/verbena-go/verbena/rdmacm."
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for {
		frame, more := frames.Next()
		if name, ok := strings.CutPrefix(frame.Function, module); ok && name != "contextError" {
			return name
		}
		if !more {
			return "another function"
		}
	}
}

func listenDatagram(t testing.TB, ip netip.Addr) *rdmacm.DatagramListener {
	t.Helper()
	testdevice.Require(t).Have(t, testdevice.Datagrams)
	ln, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// acceptDatagram accepts the next request in the background.
func acceptDatagram(t testing.TB, ln *rdmacm.DatagramListener, config *rdmacm.DatagramConfig) <-chan *rdmacm.DatagramConn {
	ctx, result := bounded(t), make(chan *rdmacm.DatagramConn, 1)
	go func() {
		defer close(result)
		req, err := ln.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		conn, err := req.Accept(ctx, config)
		if err != nil {
			t.Error(err)
			return
		}
		result <- conn
	}()
	return result
}

// datagrams returns two ends. The test closes them at the end.
func datagrams(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.DatagramConfig) (client, server *rdmacm.DatagramConn) {
	t.Helper()
	d := testdevice.Require(t)
	d.Have(t, testdevice.Datagrams)
	for _, c := range []*rdmacm.DatagramConfig{clientConfig, serverConfig} {
		if c != nil {
			d.Have(t, testdevice.Segments(c.Segments), testdevice.Inline(c.MaxInline), testdevice.Requests(max(c.SendQueue, c.RecvQueue)))
		}
	}
	ln, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	result := acceptDatagram(t, ln, serverConfig)
	client, err = rdmacm.DialDatagram(bounded(t), ln.Addr().String(), clientConfig)
	require.NoError(t, err)
	server = <-result
	require.NotNil(t, server)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
	return client, server
}

// memory returns 4 KiB that belong to an end.
func memory(t testing.TB, c *rdmacm.DatagramConn) *ibverbs.MR {
	t.Helper()
	mr, err := c.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	return mr
}

// needGuest skips the test where its changes to the system would stay.
func needGuest(t testing.TB) {
	t.Helper()
	testdevice.Needs(t, testdevice.Guest)
}

// command runs a command of the system and returns its output.
func command(t testing.TB, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
	return string(out)
}

// kernelObjects returns how many objects of each kind the kernel has for a
// device, whichever process made them.
func kernelObjects(t testing.TB, device string) map[string]int {
	t.Helper()
	var all []map[string]any
	require.NoError(t, json.Unmarshal([]byte(command(t, "rdma -j resource show")), &all))
	counts := map[string]int{}
	for _, one := range all {
		if one["ifname"] != device {
			continue
		}
		for kind, n := range one {
			if n, ok := n.(float64); ok && kind != "ifindex" {
				counts[kind] = int(n)
			}
		}
	}
	require.Contains(t, counts, "cm_id")
	return counts
}

// noKernelLeaks fails the test if it changes the number of the kernel's objects
// of the device. Where other programs may use the device, it does nothing.
func noKernelLeaks(t testing.TB, d testdevice.Device) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		return
	}
	before := kernelObjects(t, d.Name)
	t.Cleanup(func() {
		t.Helper()
		var after map[string]int
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if after = kernelObjects(t, d.Name); equalCounts(before, after) {
				return
			}
		}
		t.Errorf("the kernel had %v, and has %v\n%s", before, after, command(t, "rdma resource show cm_id"))
	})
}

func equalCounts(a, b map[string]int) bool {
	for kind, n := range a {
		if b[kind] != n {
			return false
		}
	}
	return len(a) == len(b)
}

// awaitKernelID waits until the line of an id of the kernel has all the words.
func awaitKernelID(t testing.TB, words ...string) {
	t.Helper()
	require.Eventually(t, func() bool {
		for line := range strings.Lines(command(t, "rdma resource show cm_id")) {
			found := true
			for _, w := range words {
				found = found && strings.Contains(line, w)
			}
			if found {
				return true
			}
		}
		return false
	}, patience, 5*time.Millisecond, "%v", words)
}
