// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
)

// small is a config whose connections take little memory.
var small = rsocket.Config{ReadBuffer: 2048, WriteBuffer: 4096, SendQueue: 16, RecvQueue: 16, HandshakeTimeout: patience}

// echoes accepts connections until the listener is closed, and returns a byte
// on each. Its error has the failures of Accept, and of the connections.
func echoes(ln *rsocket.Listener) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for {
		conn, err := ln.Accept()
		if err != nil {
			all.Wait()
			if !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}
		all.Go(func() {
			_, err := io.CopyN(conn, conn, 1)
			if err == nil {
				_, err = io.Copy(io.Discard, conn)
			}
			if err = errors.Join(err, conn.Close()); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
}

// handshakeLog is a logger whose failed handshakes appear in the output of a
// failed test.
func handshakeLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(failures{t.Output()}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// failures passes on the records of failures.
type failures struct{ io.Writer }

func (f failures) Write(record []byte) (int, error) {
	if !bytes.Contains(record, []byte("failed")) {
		return len(record), nil
	}
	return f.Writer.Write(record)
}

// crowdOf returns how many dial at once: all of them where the device is fast.
func crowdOf(n int) int {
	if testdevice.Soft() {
		return n
	}
	return n / 10
}

// A listener refuses no client of a burst, as TCP does not, whether its backlog
// has room for all or for few.
func TestBurst(t *testing.T) {
	for name, tt := range map[string]struct{ backlog, clients int }{
		"the system's backlog": {0, 1000},
		"a backlog of 8":       {8, 200},
	} {
		t.Run(name, func(t *testing.T) {
			d := testdevice.Require(t) // threads come with so many dials, and stay
			before := len(ibverbs.OpenObjects())
			lc := rsocket.ListenConfig{Config: shared(small), Backlog: tt.backlog}
			lc.Config.HandshakeTimeout = burstPatience
			lc.Config.Logger = handshakeLog(t)
			ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(d.IPv4, 0).String())
			require.NoError(t, err)
			served := inBackground(func() error { return echoes(ln) })
			var dialing sync.WaitGroup
			clients := crowdOf(tt.clients)
			errs := make(chan error, clients)
			begin := make(chan struct{})
			for range clients {
				dialing.Go(func() {
					<-begin
					errs <- roundTrip(ln.Addr().String())
				})
			}
			close(begin)
			dialing.Wait()
			for range clients {
				assert.NoError(t, <-errs)
			}
			require.NoError(t, ln.Close())
			require.NoError(t, <-served)
			require.Eventually(t, func() bool { return len(ibverbs.OpenObjects()) <= before }, patience, time.Millisecond, "objects stay")
		})
	}
}

// burstPatience limits the time that each client of a burst waits. A busy
// machine makes a few connections a second.
const burstPatience = 5 * time.Minute

// roundTrip sends a byte to an address and receives it again.
func roundTrip(address string) error {
	d := rsocket.Dialer{Config: shared(small), Timeout: burstPatience}
	d.Config.HandshakeTimeout = burstPatience
	conn, err := d.Dial("rdma", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{1}); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// fakeQP is the number of the last queue pair that a halfOpener has pretended
// to have. No device has so many.
var fakeQP atomic.Uint32

func init() { fakeQP.Store(0xf00000) }

// A halfOpener asks for connections and never ends a handshake.
type halfOpener struct {
	ch    *rdmacm.EventChannel
	hello []byte
	ids   []*rdmacm.ID
}

func newHalfOpener(t *testing.T) *halfOpener {
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	h := &halfOpener{ch: ch, hello: helloOf(t)}
	t.Cleanup(func() {
		var closing sync.WaitGroup
		for worker := range 16 { // the kernel takes half a second for one
			closing.Go(func() {
				for i := worker; i < len(h.ids); i += 16 {
					if err := h.ids[i].Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		closing.Wait()
		require.NoError(t, ch.Close())
	})
	return h
}

// helloOf returns the private data of a dialer.
func helloOf(t *testing.T) []byte {
	spy, err := rdmacm.Listen(bounded(t), netip.AddrPortFrom(needDevice(t).IPv4, 0).String(), nil)
	require.NoError(t, err)
	defer spy.Close()
	dialed := inBackground(func() error {
		_, err := rsocket.Dial("rdma", spy.Addr().String())
		return err
	})
	request, err := spy.Accept(bounded(t))
	require.NoError(t, err)
	hello := request.PrivateData()[:cmtest.MaxRequestData]
	require.NoError(t, request.Reject(nil))
	require.ErrorIs(t, cmtest.Take(t, dialed, "the refusal"), syscall.ECONNREFUSED)
	return hello
}

// ask asks for a connection from an address, which may be the zero Addr.
func (h *halfOpener) ask(t *testing.T, from netip.Addr, to netip.AddrPort) {
	id, err := h.ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	h.ids = append(h.ids, id)
	next := func(want rdmacm.EventType) {
		for {
			ev, err := h.ch.Next(bounded(t))
			require.NoError(t, err)
			if ev.ID == id {
				require.Equal(t, want, ev.Type)
				return
			}
		}
	}
	src := netip.AddrPort{}
	if from.IsValid() {
		src = netip.AddrPortFrom(from, 0)
	}
	require.NoError(t, id.ResolveAddr(src, to, patience))
	next(rdmacm.EventAddrResolved)
	require.NoError(t, id.ResolveRoute(patience))
	next(rdmacm.EventRouteResolved)
	require.NoError(t, id.Connect(rdmacm.ConnParam{
		PrivateData: h.hello, QPNum: fakeQP.Add(1), ResponderResources: -1, InitiatorDepth: -1,
	}))
}

// Peers that never end their handshakes hold up no honest one, and take bounded
// memory.
func TestHalfOpenPeers(t *testing.T) {
	d := needDevice(t)
	addresses := map[string]func(i int) netip.Addr{"one address": func(int) netip.Addr { return netip.Addr{} }}
	if d.IPv4.IsLoopback() {
		addresses["many addresses"] = func(i int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("127.0.%d.%d", 1+i/250, 1+i%250)) }
	}
	for name, from := range addresses {
		t.Run(name, func(t *testing.T) {
			lc := rsocket.ListenConfig{Config: rsocket.Config{HandshakeTimeout: 2 * patience}} // without a pool
			ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(d.IPv4, 0).String())
			require.NoError(t, err)
			served := inBackground(func() error { return echoes(ln) })
			to := netip.MustParseAddrPort(ln.Addr().String())
			h := newHalfOpener(t)
			for i := range crowdOf(1000) {
				h.ask(t, from(i), to)
			}
			handshakes := 0
			for _, object := range ibverbs.OpenObjects() {
				if strings.HasPrefix(object, "CQ ") {
					handshakes++
				}
			}
			require.LessOrEqual(t, handshakes, 100, "half-open peers have the listener's memory") // 64, and some that end
			began := time.Now()
			dialer := rsocket.Dialer{Config: shared(small)}
			conn, err := dialer.DialContext(bounded(t), "rdma", ln.Addr().String())
			require.NoError(t, err, "half-open peers have the listener's places")
			t.Log("an honest dial took", time.Since(began))
			echoOne(t, conn)
			require.NoError(t, conn.Close())
			require.NoError(t, ln.Close())
			require.NoError(t, <-served)
		})
	}
}

func echoOne(t *testing.T, conn net.Conn) {
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err := conn.Write([]byte{7})
	require.NoError(t, err)
	b := make([]byte, 1)
	_, err = io.ReadFull(conn, b)
	require.NoError(t, err)
	require.Equal(t, byte(7), b[0])
}

// A client whose handshake gives its place to another, after Dial has returned,
// hears why.
func TestLateEndOfHandshake(t *testing.T) {
	d := needDevice(t)
	if !testdevice.Soft() {
		t.Skip("needs the device in user space, which loses packets on demand")
	}
	lc := rsocket.ListenConfig{Config: shared(small), Backlog: 1}
	ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(d.IPv4, 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	served := inBackground(func() error { return echoes(ln) })
	mend := testdevice.LoseReadyAndWrites(t)
	dialer := rsocket.Dialer{Config: shared(small)}
	late, err := dialer.Dial("rdma", ln.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = late.Close() }) // so that a failure leaves nothing to the next tests
	other := inBackground(func() error { return roundTrip(ln.Addr().String()) })
	// The device repeats the acceptance for eight seconds, and tells nothing
	// when it gives that up. A busy machine may forgive the peer for longer.
	cmtest.Soon(t, "the other waits", func() bool { return rsocket.HurryHandshakes(ln) })
	require.NoError(t, late.SetDeadline(time.Now().Add(patience)))
	_, err = late.Read(make([]byte, 1))
	isOpError(t, err, "read", syscall.ECONNRESET)
	require.ErrorIs(t, err, rdmacm.ErrBacklogFull)
	mend()
	require.NoError(t, <-other)
	require.NoError(t, late.Close())
	require.NoError(t, ln.Close())
	require.NoError(t, <-served)
}

// A client whose handshake the listener has given up, after Dial has returned,
// hears that.
func TestHandshakeIsGivenUp(t *testing.T) {
	if needDevice(t); !testdevice.Soft() {
		t.Skip("needs the device in user space, which loses packets on demand")
	}
	config := small
	config.HandshakeTimeout = 3 * time.Second // a busy machine dials within it
	ln := listen(t, config)
	testdevice.LoseReadyAndWrites(t)
	dialer := rsocket.Dialer{Config: shared(small)}
	conn, err := dialer.DialContext(bounded(t), "rdma", ln.Addr().String())
	require.NoError(t, err)
	_, err = closedWith(t, conn).Read(make([]byte, 1))
	isOpError(t, err, "read", syscall.ECONNRESET)
	require.ErrorContains(t, err, "the listener ended the handshake before the last message of this end arrived")
	require.NotErrorIs(t, err, rdmacm.ErrBacklogFull)
}

// The first message of a client completes its handshake if the confirmation is
// lost. A client sends one as soon as it is connected.
func TestDataCompletesHandshake(t *testing.T) {
	if needDevice(t); !testdevice.Soft() {
		t.Skip("needs the device in user space, which loses packets on demand")
	}
	for name, pool := range pools {
		t.Run(name, func(t *testing.T) {
			config := small
			config.Pool = pool()
			ln := listen(t, config)
			testdevice.LoseReady(t)
			conn, err := new(rsocket.Dialer).DialContext(bounded(t), "rdma", ln.Addr().String())
			require.NoError(t, err)
			client := closedWith(t, conn)
			_, err = client.Write([]byte{1})
			require.NoError(t, err)
			echo(t, client, func() *rsocket.Conn {
				server := acceptOne(t, ln)
				_, err = io.ReadFull(server, make([]byte, 1))
				require.NoError(t, err)
				return server
			}())
		})
	}
}
