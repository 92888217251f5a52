// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// host returns the address of a device, and skips the test if there is none.
func host(t testing.TB) netip.Addr {
	t.Helper()
	d := testdevice.Require(t)
	if testdevice.Soft() {
		return netip.MustParseAddr("10.77.0.1")
	}
	return d.IPv4
}

var warm sync.Once

// need skips the test if there is no device, and makes it fail if it leaves
// anything open. What is opened only once is opened before.
func need(t *testing.T) {
	t.Helper()
	testdevice.Require(t)
	warm.Do(func() {
		r := newRig(t, Config{})
		r.works()
		require.NoError(t, r.engine.Close())
	})
	testdevice.NoLeaks(t)
}

// limited returns a context that ends hangs.
func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// rig is an engine that listens, and whose peers do as they like.
type rig struct {
	t      *testing.T
	ctx    context.Context
	engine *Engine
	ln     *Listener
	at     string
}

func newRig(t *testing.T, config Config) *rig {
	t.Helper()
	return newRigWith(t, config, ListenConfig{}, dialTimeout)
}

func newRigWith(t *testing.T, config Config, listen ListenConfig, timeout time.Duration) *rig {
	t.Helper()
	r := &rig{t: t, ctx: limited(t)}
	ip := host(t)
	var err error
	r.engine, err = New(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.engine.Close()) })
	r.ln, err = r.engine.listen(r.ctx, ":0", listen, timeout)
	require.NoError(t, err)
	r.at = netip.AddrPortFrom(ip, r.ln.Addr().Port()).String()
	return r
}

// raw connects without an engine.
func (r *rig) raw(g greeting) (*rdmacm.Conn, error) {
	conn, err := rdmacm.Dial(r.ctx, r.at, ptr(controlConfig(g)))
	if err == nil {
		r.t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

func ptr[T any](v T) *T { return &v }

// session begins a session without an engine.
func (r *rig) session() (*rdmacm.Conn, *Peer, welcome) {
	r.t.Helper()
	conn, err := r.raw(greeting{kind: kindControl})
	require.NoError(r.t, err)
	it, err := exchange(r.ctx, conn, someHello.append)
	require.NoError(r.t, err)
	w, err := decodeWelcome(it.body)
	require.NoError(r.t, err)
	p, err := r.ln.Accept(r.ctx)
	require.NoError(r.t, err)
	return conn, p, w
}

// works checks that the engine still serves peers that keep to the protocol.
func (r *rig) works() {
	r.t.Helper()
	e, err := New(Config{})
	require.NoError(r.t, err)
	p, err := e.Dial(r.ctx, r.at, DialConfig{})
	require.NoError(r.t, err)
	require.NoError(r.t, p.Send(r.ctx, []byte("works")))
	require.NoError(r.t, e.Close())
	for {
		accepted, err := r.ln.Accept(r.ctx)
		require.NoError(r.t, err)
		message, err := accepted.Receive(r.ctx)
		require.NoError(r.t, r.ctx.Err())
		if err == nil { // not one of those that said nothing
			require.Equal(r.t, "works", string(message))
			break
		}
	}
	cmtest.Soon(r.t, "no session is left", func() bool {
		r.engine.mu.Lock()
		defer r.engine.mu.Unlock()
		return len(r.engine.sessions) == 0 && len(r.engine.peers) == 0
	})
}

// items returns a frame with the first items of a stream.
func items(fill ...func(*encoder)) []byte { return itemsAt(0, 0, fill...) }

func itemsAt(first, received uint64, fill ...func(*encoder)) []byte {
	var e encoder
	e.u64(first)
	e.u64(received)
	for _, f := range fill {
		f(&e)
	}
	return e
}

func numbered(kind uint8, n uint64) func(*encoder) {
	return func(e *encoder) { appendNumber(e, kind, n) }
}

func message(n int) func(*encoder) {
	return func(e *encoder) {
		end := e.item(itemNotify)
		e.raw(make([]byte, n))
		end()
	}
}

func offered(change func(*offer)) func(*encoder) {
	o := someOffer
	change(&o)
	return o.append
}

// A peer that breaks the protocol is closed, and no other.
func TestBreachesOfTheProtocol(t *testing.T) {
	need(t)
	same := func(*offer) {}
	for name, frame := range map[string][]byte{
		"short frame":             make([]byte, frameHeader-1),
		"item without a header":   append(items(), itemOffer, 0, 0),
		"item that is not whole":  append(items(), itemOffer, 0, 0, 9, 1, 2, 3),
		"unknown item":            items(func(e *encoder) { appendNumber(e, 99, 1) }),
		"item 0":                  items(func(e *encoder) { appendNumber(e, 0, 1) }),
		"hello again":             items(someHello.append),
		"resume in the stream":    items(func(e *encoder) { appendResume(e, token{}, 0) }),
		"gap":                     itemsAt(1, 0, offered(same)),
		"last number":             itemsAt(1<<64-1, 0, offered(same)),
		"absurd acknowledgement":  itemsAt(0, 1<<63),
		"withdraw unknown":        items(numbered(itemWithdraw, 5)),
		"withdraw twice":          items(offered(same), numbered(itemWithdraw, 1), numbered(itemWithdraw, 1)),
		"answer to no withdrawal": items(numbered(itemWithdrawn, 1)),
		"credit for nothing":      items(numbered(itemCredit, 1)),
		"end after nothing":       items(numbered(itemEnd, 1)),
		"end without a number":    items(func(e *encoder) { e.item(itemEnd)() }),
		"short number":            items(func(e *encoder) { end := e.item(itemFence); e.u32(1); end() }),
		"long number":             items(func(e *encoder) { end := e.item(itemFence); e.u64(1); e.u8(0); end() }),
		"empty offer":             items(func(e *encoder) { e.item(itemOffer)() }),
		"offer without a name":    items(offered(func(o *offer) { o.name = "" })),
		"offer without bytes":     items(offered(func(o *offer) { o.length = 0 })),
		"offer that is too large": items(offered(func(o *offer) { o.length = maxLength + 1 })),
		"offer that overflows":    items(offered(func(o *offer) { o.keys[0].addr = 1<<64 - 1 })),
		"offer of other access":   items(offered(func(o *offer) { o.access = 8 })),
		"offer that changes":      items(offered(same), offered(func(o *offer) { o.length++ })),
		"two offers with a name":  items(offered(same), offered(func(o *offer) { o.id++ })),
		"too many offers":         items(offered(same), offered(func(o *offer) { o.id, o.name = 2, "b" }), offered(func(o *offer) { o.id, o.name = 3, "c" })),
		"too many notifications":  items(message(1), message(1), message(1)),
		"notification, too long":  items(message(MaxNotification + 1)),
		"number of a greeting key": items(func(e *encoder) {
			end := e.item(itemOffer)
			e.u64(1)
			e.u64(1)
			e.u8(1)
			e.u8(1)
			e.u8('a')
			e.raw(make([]byte, 13))
			end()
		}),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Offers: 2, Mailbox: 2})
			conn, p, _ := r.session()
			memory, err := conn.Alloc(max(len(frame), 1), 0)
			require.NoError(t, err)
			copy(memory.Bytes(), frame)
			_ = conn.Send(r.ctx, memory.Sub(0, len(frame))) // fails if the end comes before the acknowledgement
			cmtest.Take(t, p.Done(), "the end of the peer")
			require.ErrorIs(t, p.Err(), syscall.EPROTO)
			_, err = p.Region(r.ctx, "other")
			require.ErrorIs(t, err, syscall.EPROTO)
			cmtest.Soon(t, "the connection ends", func() bool { return conn.Err() != nil })
		})
	}
	r := newRig(t, Config{})
	r.works()
}

// A peer that has not begun a session leaves nothing behind.
func TestBreachesBeforeASession(t *testing.T) {
	need(t)
	r := newRig(t, Config{RetryTimeout: 50 * time.Millisecond})
	for name, g := range map[string][]byte{
		"none":             nil,
		"another magic":    []byte("VrbX\x01\x01\x00\x00" + string(make([]byte, 20))),
		"another version":  []byte("VrbT\x02\x01\x00\x00" + string(make([]byte, 20))),
		"unknown kind":     []byte("VrbT\x01\x03\x00\x00" + string(make([]byte, 20))),
		"unknown device":   []byte("VrbT\x01\x01\x10\x00" + string(make([]byte, 20))),
		"unknown session":  greeting{kind: kindData, token: token{1}}.encode(),
		"too short for it": []byte("VrbT\x01\x02"),
	} {
		config := controlConfig(greeting{})
		config.PrivateData = g
		conn, err := rdmacm.Dial(r.ctx, r.at, &config)
		if err == nil { // with a kind of zeros
			require.NoError(t, conn.Close())
		}
		require.ErrorIs(t, err, syscall.ECONNREFUSED, name)
	}
	for name, first := range map[string]func(*encoder){
		"no item":            func(*encoder) {},
		"two items":          func(e *encoder) { someHello.append(e); someHello.append(e) },
		"an offer":           someOffer.append,
		"no incarnation":     hello{0, 1, nil}.append,
		"no mailbox":         hello{1, 0, nil}.append,
		"large credentials":  hello{1, 1, make([]byte, MaxCredentials+1)}.append,
		"resume of nothing":  func(e *encoder) { appendResume(e, token{7}, 0) },
		"resume, too short":  func(e *encoder) { e.item(itemResume)() },
		"hello and then end": someHello.append,
	} {
		conn, err := r.raw(greeting{kind: kindControl})
		require.NoError(t, err)
		err = sendFirst(r.ctx, conn, first) // fails if the end comes first
		if name == "hello and then end" {
			require.NoError(t, conn.Close())
			continue
		}
		for err == nil { // a refusal may come first
			_, err = conn.Receive(r.ctx)
		}
		require.NoError(t, r.ctx.Err(), name)
	}
	r.works()
}

// Connections on which no engine says anything keep no other out.
func TestHalfOpenConnections(t *testing.T) {
	need(t)
	r := newRig(t, Config{})
	for range maxHalfOpen + 50 {
		_, err := r.raw(greeting{kind: kindControl})
		require.NoError(t, err)
	}
	r.works()
	r.ln.mu.Lock()
	defer r.ln.mu.Unlock()
	require.LessOrEqual(t, len(r.ln.halfOpen), maxHalfOpen)
}

// Dialers that are refused and do not take the refusal keep no other out.
func TestRefusedDialersThatDoNotAnswer(t *testing.T) {
	need(t)
	r := newRigWith(t, Config{}, ListenConfig{Authenticate: func(_ context.Context, _ netip.AddrPort, credentials []byte) ([]byte, error) {
		if string(credentials) != "good" {
			return nil, syscall.EPERM
		}
		return nil, nil
	}}, time.Hour)
	deaf := controlConfig(greeting{kind: kindControl})
	deaf.MessageSize = 0 // without receives
	for range maxServed + 10 {
		conn, err := rdmacm.Dial(r.ctx, r.at, &deaf)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, sendFirst(r.ctx, conn, someHello.append))
	}
	e, err := New(Config{})
	require.NoError(t, err)
	_, err = e.Dial(r.ctx, r.at, DialConfig{Credentials: []byte("good")})
	require.NoError(t, err)
	require.NoError(t, e.Close())
}

// A peer that asks and does not take the answers is closed before they fill the
// memory.
func TestFloodOfQuestions(t *testing.T) {
	need(t)
	r := newRig(t, Config{})
	conn, p, _ := r.session()
	// The answers are received, and not acknowledged: without receives,
	// Soft-RoCE would end the connection after RetryCount+1 times the
	// AckTimeout.
	received := cmtest.InBackground(func() (err error) {
		for err == nil {
			_, err = conn.Receive(r.ctx)
		}
		return err
	})
	defer func() { require.Error(t, cmtest.Take(t, received, "the end of the connection")) }()
	memory, err := conn.Alloc(messageLen, 0)
	require.NoError(t, err)
	for n := uint64(0); p.Err() == nil; {
		var all []func(*encoder)
		for len(all) < maxBody/(itemHeader+8) {
			all = append(all, numbered(itemFence, 4000))
		}
		size := copy(memory.Bytes(), itemsAt(n, 0, all...))
		n += uint64(len(all))
		require.Less(t, n, uint64(2*maxAnswers))
		if conn.Send(r.ctx, memory.Sub(0, size)) != nil {
			break
		}
	}
	cmtest.Take(t, p.Done(), "the end of the peer")
	require.ErrorIs(t, p.Err(), syscall.EPROTO)
	r.works()
}

// A peer that resumes its session again and again keeps one connection.
func TestResumeAgain(t *testing.T) {
	need(t)
	r := newRig(t, Config{})
	old, p, w := r.session()
	for range 5 {
		conn, err := r.raw(greeting{kind: kindControl})
		require.NoError(t, err)
		it, err := exchange(r.ctx, conn, func(e *encoder) { appendResume(e, w.token, 0) })
		require.NoError(t, err)
		require.EqualValues(t, itemResumed, it.kind)
		cmtest.Soon(t, "the old connection ends", func() bool { return old.Err() != nil })
		old = conn
	}
	require.NoError(t, p.Err())
	conn, err := r.raw(greeting{kind: kindControl})
	require.NoError(t, err)
	_, err = exchange(r.ctx, conn, func(e *encoder) { appendResume(e, w.token, 1<<40) })
	require.NoError(t, err)
	cmtest.Take(t, p.Done(), "the end of the peer")
	require.ErrorIs(t, p.Err(), syscall.EPROTO)
}

// Dial reports an acceptor that breaks the protocol.
func TestHostileAcceptor(t *testing.T) {
	need(t)
	ip := host(t)
	ctx := limited(t)
	for name, c := range map[string]struct {
		answer func(*encoder)
		want   error
	}{
		"no item":           {func(*encoder) {}, syscall.EPROTO},
		"another kind":      {someOffer.append, syscall.EPROTO},
		"short welcome":     {func(e *encoder) { e.item(itemWelcome)() }, syscall.EPROTO},
		"no incarnation":    {welcome{mailbox: 1}.append, syscall.EPROTO},
		"no mailbox":        {welcome{incarnation: 1}.append, syscall.EPROTO},
		"unknown device":    {welcome{incarnation: 1, mailbox: 1, addresses: []address{{16, netip.MustParseAddrPort("192.0.2.1:1")}}}.append, syscall.EPROTO},
		"empty refusal":     {func(e *encoder) { e.item(itemRefusal)() }, syscall.EPROTO},
		"refusal":           {refusal{refusedCredentials, "no"}.append, ErrRefused},
		"refusal, full":     {refusal{refusedFull, "full"}.append, syscall.ECONNREFUSED},
		"refusal, unknown":  {refusal{77, "why"}.append, syscall.ECONNREFUSED},
		"welcome and close": {welcome{incarnation: 1, mailbox: 1}.append, errNoSession},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
			require.NoError(t, err)
			serving := make(chan error, 1)
			go func() {
				serving <- ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
					conn, err := req.Accept(ctx, ptr(controlConfig(greeting{kind: kindControl})))
					if err != nil {
						return
					}
					it, err := receiveFirst(ctx, conn)
					answer := c.answer
					if it.kind == itemResume {
						answer = refusal{refusedSession, ""}.append
					}
					if err == nil && sendFirst(ctx, conn, answer) == nil && it.kind == itemResume {
						_, _ = conn.Receive(ctx)
					}
					_ = conn.Shutdown(ctx)
				})
			}()
			e, err := New(Config{})
			require.NoError(t, err)
			_, err = e.Dial(ctx, ln.Addr().String(), DialConfig{})
			require.ErrorIs(t, err, c.want)
			require.NoError(t, e.Close())
			require.NoError(t, ln.Close())
			<-serving
		})
	}
}

// An acceptor that ends each connection as soon as it is up is dialed more and
// more rarely, and not as often as it can end them.
func TestAcceptorThatEndsConnections(t *testing.T) {
	need(t)
	ip := host(t)
	const n = 6
	pauses := time.Duration(0) // fewer than a connection that is made n times has
	for i := range n - 1 {
		pauses += backoff(i)
	}
	for _, kind := range []uint8{kindControl, kindData} {
		t.Run(map[uint8]string{kindControl: "control", kindData: "data"}[kind], func(t *testing.T) {
			ctx := limited(t)
			ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
			require.NoError(t, err)
			ended := make(chan time.Time, 1000)
			var stay []*rdmacm.Conn
			var mu sync.Mutex
			serving := cmtest.InBackground(func() error {
				return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
					g, err := decodeGreeting(req.PrivateData())
					if err != nil {
						return
					}
					config := dataConfig(greeting{kind: kindData})
					if g.kind == kindControl {
						config = controlConfig(greeting{kind: kindControl})
					}
					conn, err := req.Accept(ctx, &config)
					if err != nil {
						return
					}
					if g.kind == kindControl {
						it, err := receiveFirst(ctx, conn)
						answer := numbered(itemResumed, 0)
						if it.kind == itemHello {
							answer = welcome{incarnation: 1, mailbox: 1, addresses: []address{{0, ln.Addr()}}}.append
						}
						if err != nil || sendFirst(ctx, conn, answer) != nil {
							_ = conn.Close() // the engine has closed its end
							return
						}
					}
					if g.kind != kind {
						mu.Lock()
						stay = append(stay, conn)
						mu.Unlock()
						return
					}
					_ = conn.Shutdown(ctx)
					ended <- time.Now()
				})
			})
			e, err := New(Config{})
			require.NoError(t, err)
			dialed := cmtest.InBackground(func() error {
				_, err := e.Dial(ctx, ln.Addr().String(), DialConfig{})
				return err
			})
			first := cmtest.Take(t, ended, "a connection")
			var last time.Time
			count := n
			if kind == kindData {
				count *= len(e.Devices()) // each has one
			}
			for range count {
				last = cmtest.Take(t, ended, "the next connection")
			}
			require.GreaterOrEqual(t, last.Sub(first), pauses)
			require.NoError(t, e.Close())
			<-dialed
			require.NoError(t, ln.Close())
			<-serving
			for _, conn := range stay {
				require.NoError(t, conn.Close())
			}
		})
	}
}

// Dial ends by itself if the peer lets it have no data connection.
func TestNoDataConnection(t *testing.T) {
	need(t)
	ip := host(t)
	at := func(ln *rdmacm.Listener) []address { return []address{{0, ln.Addr()}} }
	unfit := netip.MustParseAddrPort("[::1]:7")
	rejects := func(context.Context, *rdmacm.Request, greeting) {}
	says := func(ctx context.Context, _ *rdmacm.Request, _ greeting) { <-ctx.Done() } // nothing
	for name, tt := range map[string]struct {
		addresses func(ln *rdmacm.Listener) []address                        // of the peer's devices
		data      func(ctx context.Context, req *rdmacm.Request, g greeting) // what the peer does for a data connection
		want      string                                                     // of the last try; empty: Dial succeeds
	}{
		"refused":              {at, rejects, "dial .*: .*rejected"},
		"unanswered":           {at, says, "does not answer in 5s"},
		"no address":           {func(*rdmacm.Listener) []address { return nil }, says, "has no device with the address"},
		"no address that fits": {func(*rdmacm.Listener) []address { return []address{{0, unfit}} }, says, "fits one of the peer's"},
		"one that fits, and answers after RetryTimeout": {
			func(ln *rdmacm.Listener) []address { return []address{{0, ln.Addr()}, {1, unfit}} },
			func(ctx context.Context, req *rdmacm.Request, g greeting) {
				pause(ctx, 300*time.Millisecond)
				conn, err := req.Accept(ctx, ptr(dataConfig(greeting{kind: kindData, path: g.path})))
				for err == nil {
					_, err = conn.Receive(ctx)
				}
				_ = conn.Close()
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := limited(t)
			ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
			require.NoError(t, err)
			serving := cmtest.InBackground(func() error {
				return ln.Serve(ctx, func(ctx context.Context, req *rdmacm.Request) {
					if g, err := decodeGreeting(req.PrivateData()); err != nil || g.kind != kindControl {
						tt.data(ctx, req, g)
						return // which rejects it
					}
					conn, err := req.Accept(ctx, ptr(controlConfig(greeting{kind: kindControl})))
					if err != nil {
						return
					}
					defer func() { _ = conn.Close() }()
					if _, err = receiveFirst(ctx, conn); err == nil {
						err = sendFirst(ctx, conn, welcome{incarnation: 1, mailbox: 1, addresses: tt.addresses(ln)}.append)
					}
					for err == nil {
						_, err = conn.Receive(ctx)
					}
				})
			})
			e, err := New(Config{Devices: []string{testdevice.Require(t).Name}, RetryTimeout: 50 * time.Millisecond})
			require.NoError(t, err)
			dialed := cmtest.InBackground(func() error {
				_, err := e.Dial(context.Background(), ln.Addr().String(), DialConfig{})
				return err
			})
			err = cmtest.Take(t, dialed, "the end of Dial")
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, syscall.ETIMEDOUT)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				require.ErrorContains(t, err, "no data connection to "+ln.Addr().String()+" in 50ms")
				require.Regexp(t, tt.want, err.Error())
			}
			require.NoError(t, e.Close())
			require.NoError(t, ln.Close())
			<-serving
		})
	}
}

// Close ends a Dial that waits.
func TestCloseWhileDialing(t *testing.T) {
	need(t)
	ip := host(t)
	ctx := limited(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	e, err := New(Config{})
	require.NoError(t, err)
	dialed := cmtest.InBackground(func() error {
		_, err := e.Dial(ctx, ln.Addr().String(), DialConfig{})
		return err
	})
	req, err := ln.Accept(ctx)
	require.NoError(t, err)
	conn, err := req.Accept(ctx, ptr(controlConfig(greeting{kind: kindControl})))
	require.NoError(t, err)
	require.NoError(t, e.Close())
	require.ErrorIs(t, cmtest.Take(t, dialed, "the end of Dial"), errPeerClosed)
	require.NoError(t, conn.Close())
	require.NoError(t, ln.Close())
}

// lone returns a session of an engine without devices.
func lone(t *testing.T) *session {
	t.Helper()
	config, err := Config{RetryTimeout: time.Hour}.withDefaults()
	require.NoError(t, err)
	e := &Engine{config: config}
	e.cache = newCache(0, nil, nil)
	p := e.newPeer("x", nil)
	t.Cleanup(func() { p.timer.Stop() })
	s := newSession(p, token{}, 1, 1)
	p.session = s
	return s
}

func handle(t *testing.T, s *session, fill func(*encoder)) error {
	t.Helper()
	return s.stream.take(itemsAt(s.stream.receivedCount(), 0, fill), s.handle)
}

// A withdrawal is answered once, when no slice to the region is left.
func TestWithdrawalIsAnsweredOnce(t *testing.T) {
	s := lone(t)
	p := s.peer
	require.NoError(t, handle(t, s, someOffer.append))
	b := p.NewBatch(2)
	remote := s.names["name"]
	require.NoError(t, b.Read(make([]byte, 1), remote, 0))
	b.state, b.unfinished = submitted, 1
	b.requests[0].issued, b.requests[0].inFlight, remote.inFlight = 1, 1, 1
	p.retries = []slice{{batch: b, n: 1}} // waits to be posted again
	require.NoError(t, handle(t, s, numbered(itemWithdraw, 1)))
	require.ErrorIs(t, b.Err(0), ErrWithdrawn)
	answers := 0
	for _, it := range s.stream.items {
		if it.item[0] == itemWithdrawn {
			answers++
		}
	}
	require.Equal(t, 1, answers)
}

// Credit that the peer does not acknowledge fills no memory.
func TestCreditIsAnAnswer(t *testing.T) {
	s := lone(t)
	s.peer.engine.config.Mailbox = 1
	require.NoError(t, handle(t, s, message(1)))
	_, err := s.peer.Receive(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, s.stream.answers)
	s.stream.answers = maxAnswers
	require.ErrorIs(t, handle(t, s, message(1)), syscall.EPROTO)
}

// A peer that tells again and again that it has destroyed its end of a
// connection, while this end does so, gets one goroutine.
func TestFencesOfOnePath(t *testing.T) {
	s := lone(t)
	p, _, err := s.reservePath(7, &device{domain: new(domain)})
	require.NoError(t, err)
	require.NoError(t, handle(t, s, numbered(itemFence, 7)))
	require.ErrorIs(t, handle(t, s, numbered(itemFence, 7)), syscall.EPROTO)
	p.setDestroyed()
	cmtest.Soon(t, "the peer is told", func() bool { return !s.stream.idle() })
}

// What arrives after the end of a session changes nothing.
func TestItemsAfterTheEnd(t *testing.T) {
	s := lone(t)
	r := new(Region)
	s.ids[1], s.offered[r] = r, make(chan struct{})
	cause := errors.New("the end")
	s.end(cause)
	for _, fill := range []func(*encoder){numbered(itemWithdrawn, 1), someOffer.append, message(1), numbered(itemFence, 1)} {
		require.ErrorIs(t, handle(t, s, fill), cause)
	}
	require.Empty(t, s.regions)
	require.Empty(t, s.peer.mail)
	require.Zero(t, s.stream.receivedCount())
}

// What the peer does not acknowledge is sent again, and handled once.
func TestStreamOverConnections(t *testing.T) {
	a, b := newStream(), newStream()
	b2 := func() (got []byte) {
		buffer := make([]byte, messageLen)
		for n := a.frame(buffer); n > 0; n = a.frame(buffer) {
			require.NoError(t, b.take(buffer[:n], func(it item) error { got = append(got, it.body[7]); return nil }))
		}
		return got
	}
	done := 0
	for i := range 3 {
		a.add(func(err error) { require.NoError(t, err); done++ }, numbered(itemFence, uint64(i)))
	}
	require.Equal(t, []byte{0, 1, 2}, b2())
	require.Zero(t, done)
	require.NoError(t, a.restart(1))
	require.Equal(t, 1, done)
	require.Empty(t, b2(), "they were received")
	buffer := make([]byte, messageLen)
	n := b.frame(buffer)
	require.NoError(t, a.take(buffer[:n], nil))
	require.Equal(t, 3, done)
	require.Empty(t, a.items)
	require.ErrorIs(t, a.restart(4), syscall.EPROTO)
	failed := 0
	a.add(func(err error) { require.Error(t, err); failed++ }, numbered(itemFence, 9))
	a.end(errors.New("over"))
	require.Equal(t, 1, failed)
}

// The key of a region that is gone fails its request, and no other that was in
// flight on the connection.
func TestStaleKey(t *testing.T) {
	need(t)
	for range 3 {
		r := newRig(t, Config{})
		a, err := New(Config{SliceSize: 4096})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, a.Close()) })
		good, err := r.engine.Alloc(1<<20, RegionConfig{Name: "good", Access: WriteAccess})
		require.NoError(t, err)
		stale, err := r.engine.Alloc(1<<20, RegionConfig{Name: "stale", Access: WriteAccess})
		require.NoError(t, err)
		p, err := a.Dial(r.ctx, r.at, DialConfig{})
		require.NoError(t, err)
		var remote [2]*RemoteRegion
		for i, region := range []*Region{good, stale} {
			remote[i], err = p.Region(r.ctx, region.Name())
			require.NoError(t, err)
		}
		require.NoError(t, r.engine.deregister(stale)) // without a word to the peer
		defer func() { require.NoError(t, stale.Close()) }()
		b := p.NewBatch(64)
		data := slices.Repeat([]byte{7}, 16<<10)
		for i := range 64 {
			require.NoError(t, b.Write(remote[boolInt(i%20 == 10)], uint64(i*len(data)), data))
		}
		require.NoError(t, b.Submit(r.ctx))
		err = b.Wait(r.ctx)
		var wc *ibverbs.WCError
		require.ErrorAs(t, err, &wc)
		require.Equal(t, ibverbs.WCRemoteAccess, wc.Status)
		for i := range 64 {
			if i%20 == 10 {
				require.ErrorAs(t, b.Err(i), &wc, "%d", i)
			} else {
				require.NoError(t, b.Err(i), "%d", i)
				require.Equal(t, data, good.Bytes()[i*len(data):][:len(data)])
			}
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// All requests of a batch that no connection can carry fail when the first has
// waited for too long.
func TestRequestsWithoutKeys(t *testing.T) {
	s := lone(t)
	p := s.peer
	on := &path{session: s, local: new(device)}
	s.up = append(s.up, on)
	const n = 5
	b := p.NewBatch(n)
	for i := range n {
		o := someOffer
		o.id, o.name = uint64(i+1), strconv.Itoa(i)
		if i != 2 {
			o.keys = [maxDevices]key{}
		}
		require.NoError(t, handle(t, s, o.append))
		require.NoError(t, b.Read(make([]byte, 1), s.names[o.name], 0))
		b.requests[i].local = new(Region)
		b.requests[i].local.mrs[0].Store(new(registration))
	}
	on.generation = someOffer.keys[0].generation
	p.mu.Lock()
	defer p.mu.Unlock()
	b.state, b.unfinished = submitted, n
	p.enqueue(b)
	now := time.Now()
	b.expire(now, time.Second)
	b.expire(now.Add(time.Second), time.Second)
	require.Equal(t, n, b.unfinished)
	b.expire(now.Add(2*time.Second), time.Second)
	require.Equal(t, 1, b.unfinished)
	for i := range n {
		if i == 2 {
			require.False(t, b.requests[i].done)
		} else {
			require.ErrorIs(t, b.requests[i].err, errNoKey)
		}
	}
	p.dequeue(b)
}

// A request to a region for which the peer gives no key fails in time, and does
// not keep up what comes after it.
func TestNoKey(t *testing.T) {
	need(t)
	r := newRig(t, Config{})
	a, err := New(Config{RetryTimeout: 2 * time.Second}) // a busy machine writes within it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	p, err := a.Dial(r.ctx, r.at, DialConfig{})
	require.NoError(t, err)
	cmtest.Soon(t, "a connection can carry requests", func() bool { // without one, all would fail in time
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.session != nil && len(p.session.up) > 0
	})
	b := p.NewBatch(2)
	for _, name := range []string{"without", "with"} {
		_, err := r.engine.Alloc(100, RegionConfig{Name: name, Access: WriteAccess})
		require.NoError(t, err)
		remote, err := p.Region(r.ctx, name)
		require.NoError(t, err)
		require.NoError(t, b.Write(remote, 0, make([]byte, 100)))
		if name == "without" {
			p.mu.Lock()
			remote.offer.keys = [maxDevices]key{}
			p.mu.Unlock()
		}
	}
	require.NoError(t, b.Submit(r.ctx))
	require.ErrorIs(t, b.Wait(r.ctx), syscall.ETIMEDOUT)
	require.ErrorIs(t, b.Err(0), errNoKey)
	require.NoError(t, b.Err(1))
}
