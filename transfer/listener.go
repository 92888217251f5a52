// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
)

// ListenConfig configures Engine.Listen. The zero value is usable.
type ListenConfig struct {
	// Authenticate, if not nil, checks the credentials of an engine that
	// dials. An error refuses it, and its text is sent. Otherwise, the answer
	// is sent, at most MaxCredentials bytes, for the dialer's Verify. Before
	// Authenticate has returned, the dialer has no connection on which it
	// could reach memory of the engine. Authenticate may block until ctx ends,
	// which it does after five seconds. It is called concurrently.
	Authenticate func(ctx context.Context, from netip.AddrPort, credentials []byte) (answer []byte, err error)
	// Backlog is the maximum number of peers that wait for Accept; 0 means
	// 1024. Further ones are refused.
	Backlog int
}

// A Listener accepts peers. Its methods may be called concurrently.
type Listener struct {
	engine  *Engine
	config  ListenConfig
	timeout time.Duration // for which a dialer may keep this end waiting
	rdma    *rdmacm.Listener
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	served  chan struct{} // closed when no request is being served any more
	peers   chan *Peer    // for Accept
	err     error         // why the listener has ended; set before ended is closed
	ended   chan struct{}

	mu       sync.Mutex
	halfOpen []*halfOpen // the oldest first
}

// halfOpen is a control connection on which this end waits for the other one,
// and which is not a session's yet. It may be one of many that are there only
// to keep others out.
type halfOpen struct{ end context.CancelFunc }

// enter adds a connection to the half-open ones.
func (ln *Listener) enter(h *halfOpen) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if len(ln.halfOpen) == maxHalfOpen {
		ln.halfOpen[0].end()
		ln.halfOpen = slices.Delete(ln.halfOpen, 0, 1)
	}
	ln.halfOpen = append(ln.halfOpen, h)
}

// leave takes a connection out of the half-open ones.
func (ln *Listener) leave(h *halfOpen) {
	ln.mu.Lock()
	defer ln.mu.Unlock()
	if i := slices.Index(ln.halfOpen, h); i >= 0 {
		ln.halfOpen = slices.Delete(ln.halfOpen, i, i+1)
	}
}

const (
	maxServed   = 256 // connection requests at once
	maxHalfOpen = 128 // of those, control connections that are half open; the oldest gives way
)

// Listen listens at host:port for engines that dial. Without a host, it listens
// on all devices, and tells the dialer the addresses of the engine's, so that
// the dialer uses them all. Port 0 makes the system choose one. ctx limits the
// time to resolve the host. Listen fails with an error matching
// ibverbs.ErrNoDevice if the host's device is not one of the engine's.
func (e *Engine) Listen(ctx context.Context, address string, config ListenConfig) (*Listener, error) {
	return e.listen(ctx, address, config, dialTimeout)
}

func (e *Engine) listen(ctx context.Context, address string, config ListenConfig, timeout time.Duration) (*Listener, error) {
	const op = "Engine.Listen"
	if err := cmp.Or(e.check(op), checkContext(op, ctx)); err != nil {
		return nil, err
	}
	if config.Backlog <= 0 {
		config.Backlog = 1024
	}
	rdma, err := rdmacm.Listen(ctx, address, &rdmacm.ListenConfig{MaxServed: maxServed})
	if err != nil {
		return nil, err
	}
	if addr := rdma.Addr().Addr(); !addr.IsUnspecified() {
		if _, err := e.deviceAt(addr); err != nil { // nothing could be moved
			return nil, errors.Join(fmt.Errorf("listen on %s: %w", address, err), rdma.Close())
		}
	}
	ln := &Listener{
		engine: e, config: config, timeout: timeout, rdma: rdma, served: make(chan struct{}), ended: make(chan struct{}), peers: make(chan *Peer, config.Backlog),
	}
	ln.ctx, ln.cancel = context.WithCancel(context.Background())
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.listeners[ln] = struct{}{}
	}
	e.mu.Unlock()
	if closed {
		ln.cancel()
		return nil, errors.Join(errEngineClosed, rdma.Close())
	}
	go ln.serve()
	return ln, nil
}

// Addr returns the address of the listener.
func (ln *Listener) Addr() netip.AddrPort {
	if ln.check("") != nil {
		return netip.AddrPort{}
	}
	return ln.rdma.Addr()
}

// check returns an error if the Listener is nil or not from Listen.
func (ln *Listener) check(op string) error {
	if ln == nil || ln.engine == nil {
		return cerr.Refuse(op, "", "the Listener is nil or was not made by Engine.Listen")
	}
	return nil
}

// Accept waits for an engine that dials, and returns it as a Peer. The peer can
// use the regions that it is told of before Accept returns. Accept fails with
// an error matching os.ErrClosed after Close, and with ctx.Err() if ctx ends
// first.
func (ln *Listener) Accept(ctx context.Context) (*Peer, error) {
	const op = "Listener.Accept"
	if err := cmp.Or(ln.check(op), checkContext(op, ctx)); err != nil {
		return nil, err
	}
	select {
	case p := <-ln.peers:
		return p, nil
	default:
	}
	select {
	case p := <-ln.peers:
		return p, nil
	case <-ln.ended:
		return nil, ln.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close stops listening, closes the peers that wait for Accept, all at once,
// and waits as Peer.Close does. Accepted peers stay, but they cannot make new
// connections: if they lose all that they have, they end.
func (ln *Listener) Close() error {
	if ln.check("") != nil {
		return nil
	}
	e := ln.engine
	e.mu.Lock()
	delete(e.listeners, ln)
	e.mu.Unlock()
	ln.cancel()
	err := ln.rdma.Close()
	<-ln.served
	var closing sync.WaitGroup
	for {
		select {
		case p := <-ln.peers:
			closing.Go(func() { _ = p.Close() })
			continue
		default:
		}
		closing.Wait()
		return err
	}
}

// serve handles connection requests.
func (ln *Listener) serve() {
	defer close(ln.served)
	err := ln.rdma.Serve(ln.ctx, ln.handle)
	if err == nil {
		err = errListenerClosed
	}
	ln.err = err
	close(ln.ended)
}

var errListenerClosed = fmt.Errorf("transfer: the listener is closed: %w", os.ErrClosed)

// handle handles a connection request. Serve rejects what it does not accept.
func (ln *Listener) handle(ctx context.Context, req *rdmacm.Request) {
	g, err := decodeGreeting(req.PrivateData())
	if err == nil {
		if g.kind == kindControl {
			err = ln.control(ctx, req)
		} else {
			err = ln.data(req, g)
		}
	}
	if err != nil {
		ln.logRefusal(ctx, req, err)
	}
}

// logRefusal logs why a connection was refused, unless the end of ctx explains
// it.
func (ln *Listener) logRefusal(ctx context.Context, req *rdmacm.Request, err error) {
	if ctx.Err() == nil {
		ln.engine.log(slog.LevelWarn, "transfer: connection refused", "peer", req.RemoteAddr(), "error", err)
	}
}

// control accepts a control connection.
func (ln *Listener) control(ctx context.Context, req *rdmacm.Request) error {
	config := controlConfig(greeting{kind: kindControl})
	first, cancel := context.WithTimeout(ctx, ln.timeout)
	defer cancel()
	h := &halfOpen{cancel}
	ln.enter(h)
	defer ln.leave(h)
	conn, err := req.Accept(first, &config)
	if err != nil {
		return err
	}
	it, err := receiveFirst(first, conn)
	if err == nil {
		switch it.kind {
		case itemHello:
			err = ln.greet(first, req, conn, h, it)
		case itemResume:
			err = ln.resume(first, conn, it)
		default:
			err = protocolError("a first item of kind %d", it.kind)
		}
	}
	if err != nil {
		err = errors.Join(err, conn.Close())
	}
	return err
}

// refuse tells the dialer why it is refused.
func refuse(ctx context.Context, conn *rdmacm.Conn, reason uint8, err error) error {
	_ = sendFirst(ctx, conn, refusal{reason, err.Error()}.append)
	_ = conn.Shutdown(ctx) // otherwise, the refusal could be lost with the connection
	return err
}

// greet begins a session.
func (ln *Listener) greet(ctx context.Context, req *rdmacm.Request, conn *rdmacm.Conn, open *halfOpen, it item) error {
	e := ln.engine
	h, err := decodeHello(it.body)
	if err != nil {
		return err
	}
	w := welcome{incarnation: e.incarnation, mailbox: uint32(e.config.Mailbox), addresses: e.addresses(ln.Addr())}
	if ln.config.Authenticate != nil {
		ln.leave(open) // meanwhile, the other end waits
		w.answer, err = ln.config.Authenticate(ctx, req.RemoteAddr(), h.credentials)
		ln.enter(open)
		if err == nil && len(w.answer) > MaxCredentials {
			err = fmt.Errorf("the answer has %d bytes; at most %d are possible", len(w.answer), MaxCredentials)
		}
		if err != nil {
			return refuse(ctx, conn, refusedCredentials, err)
		}
	}
	if len(ln.peers) == cap(ln.peers) {
		return refuse(ctx, conn, refusedFull, ln.errFull())
	}
	if _, err := rand.Read(w.token[:]); err != nil {
		return err
	}
	p := e.newPeer(req.RemoteAddr().String(), nil)
	p.credentials = slices.Clone(h.credentials)
	s := newSession(p, w.token, h.incarnation, h.mailbox)
	if err := e.admit(p); err != nil {
		return err
	}
	e.mu.Lock()
	e.sessions[w.token] = s
	e.mu.Unlock()
	if err = sendFirst(ctx, conn, w.append); err == nil {
		err = p.begin(s)
	}
	if err == nil {
		select {
		case ln.peers <- p:
		default:
			err = ln.errFull()
		}
	}
	if err != nil {
		s.end(err) // may not be the peer's yet
		p.end(err)
		return err
	}
	go p.linger(conn, s)
	return nil
}

func (ln *Listener) errFull() error {
	return fmt.Errorf("transfer: %d peers wait for Listener.Accept: %w", cap(ln.peers), syscall.ECONNREFUSED)
}

// linger runs the session of a peer that has dialed, and ends the peer when the
// session ends, or when its dialer does not come back.
func (p *Peer) linger(conn *rdmacm.Conn, s *session) {
	err := s.attach(conn, 0)
	s.endUnlessResumed(err)
	<-s.ctx.Done()
	p.mu.Lock()
	err = s.err
	p.mu.Unlock()
	p.end(err)
}

// endUnlessResumed ends the session unless it has another control connection
// soon.
func (s *session) endUnlessResumed(err error) {
	timeout := s.peer.engine.config.RetryTimeout
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	attached := s.attached
	if s.control != nil || s.err != nil {
		return
	}
	if s.endTimer != nil {
		s.endTimer.Stop()
	}
	s.endTimer = time.AfterFunc(timeout, func() {
		s.peer.mu.Lock()
		back := s.attached != attached
		s.peer.mu.Unlock()
		if !back {
			s.end(fmt.Errorf("transfer: the peer did not come back in %v: %w: %w", timeout, syscall.ETIMEDOUT, err))
		}
	})
}

// resume gives a session a new control connection.
func (ln *Listener) resume(ctx context.Context, conn *rdmacm.Conn, it item) error {
	t, received, err := decodeResume(it.body)
	if err != nil {
		return err
	}
	s := ln.engine.sessionOf(t)
	if s == nil {
		return refuse(ctx, conn, refusedSession, errNoSession)
	}
	if err := sendFirst(ctx, conn, func(e *encoder) { appendNumber(e, itemResumed, s.stream.receivedCount()) }); err != nil {
		return err
	}
	go func() { s.endUnlessResumed(s.attach(conn, received)) }()
	return nil
}

func (e *Engine) sessionOf(t token) *session {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sessions[t]
}

// data accepts a data connection of a session.
func (ln *Listener) data(req *rdmacm.Request, g greeting) error {
	e := ln.engine
	s := e.sessionOf(g.token)
	if s == nil {
		return errNoSession
	}
	local, err := e.deviceAt(req.LocalAddr().Addr())
	if err != nil {
		return err
	}
	p, ctx, err := s.reservePath(g.path, local)
	if err != nil {
		return err
	}
	config := dataConfig(greeting{kind: kindData, device: uint8(local.index), generation: p.domain.generation, path: g.path})
	config.PD = p.domain.pd
	conn, err := req.Accept(ctx, &config)
	if err != nil {
		s.dropPath(p)
		e.connectionEnded(local, p.domain, err)
		return err
	}
	go func() {
		if err := awaitFirst(ctx, conn, ln.timeout); err != nil {
			ln.logRefusal(ctx, req, err) // before dropPath, which ends ctx
			_ = conn.Close()
			s.dropPath(p)
			e.connectionEnded(local, p.domain, err)
			return
		}
		if err := s.runPath(p, conn, g); err != nil {
			ln.logRefusal(s.ctx, req, err) // ctx has ended with the path
		}
	}()
	return nil
}

// awaitFirst waits for the message with which the dialer begins a data
// connection. On iWARP, this end must not send before.
func awaitFirst(ctx context.Context, conn *rdmacm.Conn, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := conn.Receive(ctx)
	if err == nil && len(m.Data) > 0 {
		err = protocolError("a first message of %d bytes", len(m.Data))
	}
	return err
}
