package rdmacm_test

import (
	"context"
	"encoding/json"
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
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// patience is how long anything may take that must happen.
const patience = 20 * time.Second

// TestMain lets a test run this program again as its peer.
func TestMain(m *testing.M) {
	if address := os.Getenv(victimEnv); address != "" {
		victim(address)
	}
	if address := os.Getenv(crowdEnv); address != "" {
		crowd(address)
	}
	if order := os.Getenv(soakEnv); order != "" {
		soakClients(order)
	}
	if role := os.Getenv(peerEnv); role != "" {
		playPeer(strings.Fields(role))
	}
	if job := os.Getenv(farEnv); job != "" {
		far(job)
	}
	os.Exit(m.Run())
}

// needDevice returns the device to test with, and fails the test if it leaves
// anything behind.
func needDevice(t testing.TB) testdevice.Device {
	t.Helper()
	d := testdevice.Require(t)
	warmUp(t, d.IPv4)
	testdevice.NoLeaks(t)
	return d
}

var warm sync.Once

// warmUp makes librdmacm open what it then keeps.
func warmUp(t testing.TB, ip netip.Addr) {
	t.Helper()
	warm.Do(func() {
		ch, err := rdmacm.NewEventChannel()
		require.NoError(t, err)
		id, err := ch.NewID(rdmacm.PortSpaceTCP)
		require.NoError(t, err)
		require.NoError(t, id.BindAddr(netip.AddrPortFrom(ip, 0)))
		_, err = id.Device()
		require.NoError(t, err)
		require.NoError(t, id.Close())
		require.NoError(t, ch.Close())
	})
}

// bounded returns a context that ends with the test or when patience does.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// listenOn returns a listener on a free port, closed with the test.
func listenOn(t testing.TB, ip netip.Addr) *rdmacm.Listener {
	t.Helper()
	ln, err := rdmacm.Listen(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// accepted is what came of a request.
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
			a.conn, a.err = a.req.Accept(ctx, config)
		}
		result <- a
	}()
	return result
}

// connect returns the two ends of a connection, closed with the test.
func connect(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.Config) (client, server *rdmacm.Conn) {
	t.Helper()
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	result := acceptOne(ctx, ln, serverConfig)
	client, err = rdmacm.Dial(ctx, ln.Addr().String(), clientConfig)
	require.NoError(t, err)
	a := <-result
	require.NoError(t, a.err)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, a.conn.Close())
	})
	return client, a.conn
}

// alloc returns memory of a connection that the peer may read and write.
func alloc(t testing.TB, conn *rdmacm.Conn, size int) *ibverbs.MR {
	t.Helper()
	mr, err := conn.Alloc(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteWrite)
	require.NoError(t, err)
	return mr
}

// padded returns private data as the peer sees it.
func padded(data []byte, size int) []byte {
	return append(append([]byte(nil), data...), make([]byte, size-len(data))...)
}

// transport's maxima on InfiniBand and RoCE
const (
	maxRequestData = 56
	maxReplyData   = 196
	maxRejectData  = 148
)

// countdown is a context that ends when somebody looks at it for the nth time.
// Each step that waits looks at least once. It notes the functions of the
// package that look.
type countdown struct {
	context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	left   int
	stages []string
}

func newCountdown(t *testing.T, n int) *countdown {
	c := &countdown{left: n}
	c.Context, c.cancel = context.WithCancel(bounded(t))
	t.Cleanup(c.cancel)
	return c
}

func (c *countdown) Done() <-chan struct{} { c.tick(looker()); return c.Context.Done() }
func (c *countdown) Err() error            { c.tick(looker()); return c.Context.Err() }

// tick counts one look.
func (c *countdown) tick(stage string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left--; c.left == 0 {
		c.cancel()
	}
	if c.left >= 0 && !slices.Contains(c.stages, stage) {
		c.stages = append(c.stages, stage)
	}
}

// last returns the stage at which the context has ended, and whether it has.
func (c *countdown) last() (stage string, ended bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Context.Err() == nil || len(c.stages) == 0 {
		return "", false
	}
	return c.stages[len(c.stages)-1], true
}

func (c *countdown) ended() bool {
	_, ended := c.last()
	return ended
}

// looker returns the function of the package that looks at the context.
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
			return "somebody else"
		}
	}
}

// The private data that requests and answers about datagrams have room for.
const (
	maxDatagramRequest = 180
	maxDatagramReply   = 136
)

func listenDatagram(t testing.TB, ip netip.Addr) *rdmacm.DatagramListener {
	t.Helper()
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

// datagrams returns two ends, closed with the test.
func datagrams(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.DatagramConfig) (client, server *rdmacm.DatagramConn) {
	t.Helper()
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

// memory returns 4 KiB of an end's own.
func memory(t testing.TB, c *rdmacm.DatagramConn) *ibverbs.MR {
	t.Helper()
	mr, err := c.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	return mr
}

// endpointQueues is what the queue pairs of endpoints in tests hold.
var endpointQueues = ibverbs.QPConfig{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 2, MaxRecvSGE: 2, SignalAll: true}

func newEndpoint(t testing.TB, ps rdmacm.PortSpace) *rdmacm.Endpoint {
	t.Helper()
	ep, err := rdmacm.NewEndpoint(ps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep
}

// passiveEndpoint returns an endpoint that listens. Its requests get queue
// pairs.
func passiveEndpoint(t testing.TB, ps rdmacm.PortSpace, ip netip.Addr) *rdmacm.Endpoint {
	t.Helper()
	info := rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: ps, Src: netip.AddrPortFrom(ip, 0)}
	ep, err := rdmacm.CreateEndpoint(bounded(t), info, nil, &endpointQueues)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	require.NoError(t, ep.Listen(0))
	return ep
}

// activeEndpoint returns an endpoint that can connect.
func activeEndpoint(t testing.TB, ps rdmacm.PortSpace, to netip.AddrPort) *rdmacm.Endpoint {
	t.Helper()
	ep, err := rdmacm.CreateEndpoint(bounded(t), rdmacm.AddrInfo{PortSpace: ps, Dst: to}, nil, &endpointQueues)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep
}

// getRequest returns the endpoint of the next request, closed with the test.
func getRequest(t testing.TB, ln *rdmacm.Endpoint) *rdmacm.Endpoint {
	t.Helper()
	request, err := ln.GetRequest(bounded(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, request.Close()) })
	return request
}

// inBackground runs f, whose error comes on the channel.
func inBackground(f func() error) <-chan error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return result
}

// connectEndpoints returns the two ends of a connection.
func connectEndpoints(t testing.TB, ip netip.Addr) (client, server *rdmacm.Endpoint) {
	t.Helper()
	ctx := bounded(t)
	ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, ip)
	client = activeEndpoint(t, rdmacm.PortSpaceTCP, ln.ID().LocalAddr())
	connected := inBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server = getRequest(t, ln)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	require.NoError(t, ln.Close())
	return client, server
}

// nextOf returns the endpoint's next event, which must be of the type.
func nextOf(t testing.TB, ep *rdmacm.Endpoint, want rdmacm.EventType) *rdmacm.Event {
	t.Helper()
	ev, err := ep.Next(bounded(t))
	require.NoError(t, err)
	require.Equal(t, want, ev.Type, "%v, status %d", ev.Type, ev.Status)
	return ev
}

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// bench has what the queue pairs of a test are made with.
type bench struct {
	t  testing.TB
	ip netip.Addr
	pd *ibverbs.PD
	cq *ibverbs.CQ
	mr *ibverbs.MR

	qps sync.Map // of the ids
}

func newBench(t testing.TB, d testdevice.Device) *bench {
	t.Helper()
	b := &bench{t: t, ip: d.IPv4}
	device := find(t, d.Name)
	require.NotNil(t, device)
	var err error
	b.pd, err = device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.pd.Close()) })
	ch, err := device.CreateCompChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	b.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: 256, Channel: ch})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.cq.Close()) })
	b.mr, err = b.pd.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.mr.Close()) })
	t.Cleanup(func() {
		b.qps.Range(func(id, _ any) bool {
			require.NoError(t, id.(*rdmacm.HandledID).Shutdown(context.Background()))
			return true
		})
	})
	return b
}

// createQP gives an id a queue pair with a receive posted.
func (b *bench) createQP(id *rdmacm.HandledID) error {
	qp, err := id.CreateQP(b.pd, ibverbs.QPConfig{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
	if err != nil {
		return err
	}
	b.qps.Store(id, qp)
	batch, err := ibverbs.NewRecvBatch(1, 1)
	if err != nil {
		return err
	}
	if err := batch.Recv(1, b.mr.Sub(0, 64)); err != nil {
		return err
	}
	_, err = qp.PostRecv(batch)
	return err
}

// send sends a message of the bench's memory.
func (b *bench) send(id *rdmacm.HandledID) {
	b.t.Helper()
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(b.t, err)
	require.NoError(b.t, batch.Send(2, ibverbs.SendSignaled, b.mr.Sub(64, 64)))
	qp, _ := b.qps.Load(id)
	_, err = qp.(*ibverbs.QP).PostSend(batch)
	require.NoError(b.t, err)
}

// dialing is the handler of an id that connects; the rest goes to then.
func (b *bench) dialing(then rdmacm.Handler) rdmacm.Handler {
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		switch ev.Type {
		case rdmacm.EventAddrResolved:
			return ev.ID.ResolveRoute(time.Second)
		case rdmacm.EventRouteResolved:
			if err := b.createQP(id); err != nil {
				return err
			}
			return ev.ID.Connect(rdmacm.ConnParam{RetryCount: 7, PeerRNRRetryCount: 7})
		}
		return then(id, ev)
	}
}

// accepting is the handler of an id that listens; the rest goes to then.
func (b *bench) accepting(then rdmacm.Handler) rdmacm.Handler {
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		if ev.Type != rdmacm.EventConnectRequest {
			return then(id, ev)
		}
		if err := b.createQP(id); err != nil {
			return err
		}
		return ev.ID.Accept(rdmacm.ConnParam{PeerRNRRetryCount: 7})
	}
}

// handled makes an id, which is over with the test.
func handled(t testing.TB, handler rdmacm.Handler) *rdmacm.HandledID {
	t.Helper()
	id, err := rdmacm.NewHandledID(rdmacm.PortSpaceTCP, handler)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, id.Shutdown(ctx))
	})
	return id
}

// listen makes an id that listens.
func (b *bench) listen(backlog int, handler rdmacm.Handler) *rdmacm.HandledID {
	b.t.Helper()
	id := handled(b.t, handler)
	require.NoError(b.t, id.ID().BindAddr(netip.AddrPortFrom(b.ip, 0)))
	require.NoError(b.t, id.Listen(backlog))
	return id
}

// dial makes an id that connects to another.
func (b *bench) dial(to *rdmacm.HandledID, handler rdmacm.Handler) *rdmacm.HandledID {
	b.t.Helper()
	id := handled(b.t, b.dialing(handler))
	resolve(b.t, id, to.ID().LocalAddr())
	return id
}

// resolve begins to make an id connect.
func resolve(t testing.TB, id *rdmacm.HandledID, to netip.AddrPort) {
	t.Helper()
	require.NoError(t, id.ID().ResolveAddr(netip.AddrPort{}, to, time.Second))
}

// happening is an event that a handler was given.
type happening struct {
	id *rdmacm.HandledID
	ev *rdmacm.Event
}

// record returns a handler that notes what it is given, and ends ids that are
// over.
func record() (rdmacm.Handler, chan happening) {
	seen := make(chan happening, 4096)
	return func(id *rdmacm.HandledID, ev *rdmacm.Event) error {
		seen <- happening{id, ev}
		return ev.Err()
	}, seen
}

// await returns what happens next, which must be of the type.
func await(t testing.TB, seen <-chan happening, want rdmacm.EventType) happening {
	t.Helper()
	h := take(t, seen, want.String())
	require.Equal(t, want, h.ev.Type, "%v, status %d", h.ev.Type, h.ev.Status)
	return h
}

// take returns what comes next.
func take[T any](t testing.TB, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		require.FailNow(t, "does not come", what)
	}
	return v
}

// needGuest skips the test where what it changes would stay changed.
func needGuest(t testing.TB) {
	t.Helper()
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("changes the system: runs only in tests/vm's guest")
	}
}

// command runs a command of the system's and returns its output.
func command(t testing.TB, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", line, out)
	return string(out)
}

// kernelObjects returns how many objects of each kind the kernel has for a
// device, whoever made them.
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

// noKernelLeaks fails the test if the kernel has other objects of the device
// after it than before. Where others may use the device it says nothing.
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

// awaitKernelID waits until the kernel has an id whose line has all the words.
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
