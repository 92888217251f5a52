// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// patience is a limit for waits that take milliseconds on an idle machine.
const patience = time.Minute

// loopback is an address that every node of the machine has.
var loopback = netip.MustParseAddr("127.0.0.1")

// caller is a program that uses the connection manager of a node.
type caller struct {
	*Node
	channel *manager.Channel
	events  chan struct{} // has room for one: there may be events
}

func newCaller() *caller {
	c := &caller{Node: New(&program{}, newDoorbell()), events: make(chan struct{}, 1)}
	c.Start()
	c.Lock()
	defer c.Unlock()
	c.channel = c.Manager().NewChannel(func(int) {
		select {
		case c.events <- struct{}{}:
		default:
		}
	})
	return c
}

// call calls f with the node locked.
func (c *caller) call(f func() error) error {
	c.Lock()
	defer c.Unlock()
	return f()
}

func (c *caller) id(t testing.TB) (id *manager.ID) {
	require.NoError(t, c.call(func() (err error) {
		id, err = c.Manager().NewID(c.channel, librdmacm.RDMA_PS_TCP, 0, nil)
		return err
	}))
	return id
}

// next waits for the next event, of the type that is wanted.
func (c *caller) next(t testing.TB, want librdmacm.CmEventType) (e *manager.Event) {
	t.Helper()
	for limit := time.After(patience); ; {
		_ = c.call(func() error {
			e = c.channel.Next()
			return nil
		})
		if e != nil {
			require.Equal(t, want, e.Type)
			return e
		}
		select {
		case <-c.events:
		case <-limit:
			require.FailNow(t, "no event", "%v was to come", want)
		}
	}
}

// connect connects with a listener, up to its acceptance.
func (c *caller) connect(t testing.TB, to netip.AddrPort) {
	t.Helper()
	id := c.id(t)
	require.NoError(t, c.call(func() error { return id.ResolveAddr(netip.AddrPort{}, to) }))
	c.next(t, librdmacm.RDMA_CM_EVENT_ADDR_RESOLVED)
	require.NoError(t, c.call(func() error { return id.ResolveRoute(time.Second) }))
	c.next(t, librdmacm.RDMA_CM_EVENT_ROUTE_RESOLVED)
	require.NoError(t, c.call(func() error { return id.Connect(c.Now(), manager.DefaultConnParam()) }))
	c.next(t, librdmacm.RDMA_CM_EVENT_CONNECT_RESPONSE)
}

const listenerEnv = "NODE_TEST_LISTENER"

// TestListener is, in a process of its own, a node that accepts one connection
// and goes on until its input ends.
func TestListener(t *testing.T) {
	if os.Getenv(listenerEnv) == "" {
		t.Skip("TestStoppedNeighbour runs it")
	}
	c := newCaller()
	id := c.id(t)
	require.NoError(t, c.call(func() error { return id.Bind(netip.AddrPortFrom(loopback, 0)) }))
	require.NoError(t, c.call(func() error { return id.Listen(1) }))
	fmt.Println("listening at", id.LocalAddr())
	go func() {
		request := c.next(t, librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST)
		_ = c.call(func() error { return request.ID.Accept(c.Now(), manager.DefaultConnParam()) })
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startListener starts a process that listens.
func startListener(t *testing.T) (process *os.Process, at netip.AddrPort) {
	t.Helper()
	listener := exec.Command(os.Args[0], "-test.run", "^TestListener$", "-test.timeout", "2m")
	listener.Env, listener.Stderr = append(os.Environ(), listenerEnv+"=1"), os.Stderr
	_, err := listener.StdinPipe()
	require.NoError(t, err)
	out, err := listener.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, listener.Start())
	t.Cleanup(func() {
		_ = listener.Process.Kill()
		_ = listener.Wait() // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	at, err = netip.ParseAddrPort(strings.TrimSpace(strings.TrimPrefix(line, "listening at ")))
	require.NoError(t, err)
	return listener.Process, at
}

// A process that is stopped, and whose ring is full, holds up one call that
// sends to it, and no calls that send to others.
func TestStoppedNeighbour(t *testing.T) {
	c := newCaller()
	m := c.network.(*machine)
	require.NotNil(t, m.link)
	slotOf := func(at netip.AddrPort) int {
		slot, err := m.link.Find(claimName(librdmacm.RDMA_PS_TCP, at.Addr(), at.Port()))
		require.NoError(t, err)
		return slot
	}
	process, at := startListener(t)
	_, liveAt := startListener(t)
	stopped, live := slotOf(at), slotOf(liveAt)
	require.NoError(t, process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	_, err := syscall.Wait4(process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())

	// sendPending sends a message in a call of the program, and returns what the
	// call waits for.
	sendPending := func(slot int) []pending {
		c.Lock()
		defer c.Unlock()
		m.sendMADTo(slot, manager.MAD{Src: at.Addr(), Dst: at.Addr()})
		return c.pending()
	}
	for m.link.Idle() {
		c.Lock()
		m.link.Send(stopped, link.MaxFrame, true, func(frame []byte) bool {
			frame[0] = 0 // no kind of frame
			return true
		})
		c.Unlock()
	}
	for range 100 {
		require.Empty(t, sendPending(live))
	}
	c.connect(t, liveAt)
	require.Len(t, sendPending(stopped), 1)
	for range 100 {
		require.Empty(t, sendPending(stopped), "the call before has waited for it")
		require.Empty(t, sendPending(live))
	}
	mark := m.link.Way(stopped).Mark()
	for qpn, want := range map[uint32]*link.Way{
		uint32(c.slot)<<qpnBits + 1:  nil,
		uint32(live)<<qpnBits + 1:    m.link.Way(live),
		uint32(stopped)<<qpnBits + 1: m.link.Way(stopped),
		wire.MulticastQP:             m.link.Way(link.Slots),
	} {
		w := m.Way(wire.GIDOf(at.Addr()), wire.GIDOf(at.Addr()), qpn)
		if want == nil {
			require.Nil(t, w)
			continue
		}
		require.Same(t, want, w)
		require.True(t, w.Left(mark), "the process was given up")
	}
	require.NoError(t, process.Signal(syscall.SIGCONT))
	require.Eventually(t, m.link.Idle, patience, time.Millisecond, "the process goes on and does not read")
}

// way is a way on which everything has left.
type way struct{ engine.Way }

func (*way) Mark() uint64     { return 0 }
func (*way) Left(uint64) bool { return true }

// A call notes what it sends itself, and not what is sent while it waits with
// the node unlocked.
func TestCallsNoteWhatTheySend(t *testing.T) {
	n := newWired(t)
	a, b := &way{}, &way{}
	n.Lock()
	n.note(a)
	n.note(a)
	require.Len(t, n.used, 1)
	require.Same(t, a, n.used[0])
	n.Unlock() // it waits
	n.mu.Lock()
	n.note(b) // the worker
	require.Empty(t, n.used)
	n.mu.Unlock()
	n.Lock()
	n.note(b) // another call
	n.Unlock()
	n.Lock()
	defer n.Unlock()
	require.Empty(t, n.used)
}

// A packet to another process arrives with the number of packets for which it
// stands, also the longest one.
func TestPacketInFrame(t *testing.T) {
	n := newWired(t)
	p := &wire.Packet{
		SGID: wire.GIDOf(loopback), DGID: wire.GIDOf(loopback), Opcode: wire.RCWriteOnlyImm, PKey: wire.DefaultPKey,
		DestQP: 1, More: 6, Payload: [][]byte{make([]byte, longPacket)},
	}
	frame := make([]byte, headerLen+p.Size())
	require.LessOrEqual(t, len(frame), link.MaxFrame)
	require.True(t, enframe(frame, p))
	(*neighbours)(newMachine(n.Node)).Receive(2, frame)
	require.EqualValues(t, 7, n.devices.inUse[0].Counters().PacketsReceived)
}
