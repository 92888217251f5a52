// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
)

// DialConfig configures Engine.Dial. The zero value is usable.
type DialConfig struct {
	// Credentials are shown to the other end's ListenConfig.Authenticate, at
	// most MaxCredentials bytes. They go over the network as they are.
	Credentials []byte
	// Verify, if not nil, checks the answer of the other end's Authenticate
	// before that end is told of any region. An error ends the attempt. The
	// other end's Accept may have returned a Peer by then, which ends after
	// its Config.RetryTimeout.
	Verify func(answer []byte) error
}

// dialer makes and keeps up the connections to a peer that this end dials.
type dialer struct {
	address string
	at      netip.AddrPort // what the address stands for; known while there is a session
	config  DialConfig
	ctx     context.Context
	stop    context.CancelFunc
	numbers atomic.Uint32 // of paths
	running sync.WaitGroup
}

const (
	dialTimeout  = 5 * time.Second // of one attempt
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = 2 * time.Second
	// ackTimeout makes a connection end some seconds after its network: it is
	// not the only one, so it need not wait for the network to come back.
	ackTimeout = 100 * time.Millisecond
)

// Dial connects to the engine that listens at host:port: with one connection
// for control, and Config.Connections for each pair of devices. It returns when
// the first of these is up. From then on, the engine replaces connections that
// fail, until the Peer is closed. If the peer cannot be reached for
// Config.RetryTimeout, or its program restarts, the session ends and the next
// one begins when it can be reached.
//
// Dial fails with an error matching ErrRefused if Authenticate or Verify
// refuses, with one matching syscall.ECONNREFUSED if no engine listens there or
// its Backlog is full, and with ctx.Err() if ctx ends first. If the connection
// for control is up, but no other can be made in Config.RetryTimeout, and each
// was tried once, the error matches syscall.ETIMEDOUT, and says why the last
// try failed. If the other program ends meanwhile, the error matches
// syscall.ECONNRESET, ECONNREFUSED or ETIMEDOUT. If a later session is refused,
// the Peer ends: its Err matches ErrRefused.
func (e *Engine) Dial(ctx context.Context, address string, config DialConfig) (*Peer, error) {
	const op = "Engine.Dial"
	if err := cmp.Or(e.check(op), checkContext(op, ctx)); err != nil {
		return nil, err
	}
	if len(config.Credentials) > MaxCredentials {
		return nil, cerr.Refuse(op, address, "the credentials have %d bytes; at most %d are possible", len(config.Credentials), MaxCredentials)
	}
	d := &dialer{address: address, config: config}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.running.Add(1) // Close of the engine waits for what follows
	p := e.newPeer(address, d)
	if err := e.admit(p); err != nil {
		d.stop()
		return nil, err
	}
	conn, s, addresses, err := p.beginSession(ctx)
	if err != nil {
		if d.ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", errPeerClosed, err)
		}
		d.running.Done()
		p.end(err)
		return nil, err
	}
	go func() {
		defer d.running.Done()
		p.maintainSessions(conn, s, addresses)
	}()
	if err := p.awaitPath(ctx, s); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// awaitPath waits until a data connection of the session is up, or was.
func (p *Peer) awaitPath(ctx context.Context, s *session) error {
	wasUp, isLate := false, false
	timeout := p.engine.config.RetryTimeout
	timer := time.AfterFunc(timeout, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		isLate = true
		p.changed()
	})
	defer timer.Stop()
	var ended error // why the session has
	err := p.await(ctx, func() bool {
		wasUp, ended = s.wasUp, s.err
		return wasUp || ended != nil || isLate && s.untried == 0 && p.lastErr != nil // each first try has its time
	})
	if err == nil && !wasUp {
		err = ended
		if err == nil {
			err = fmt.Errorf("transfer: no data connection to %s in %v: %w", p.dialer.address, timeout, syscall.ETIMEDOUT)
		}
	}
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastErr != nil {
		err = fmt.Errorf("%w: %w", err, p.lastErr)
	}
	return err
}

// admit adds a peer to the engine's.
func (e *Engine) admit(p *Peer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errEngineClosed
	}
	e.peers[p] = struct{}{}
	return nil
}

// controlConfig is the config of control connections.
func controlConfig(g greeting) rdmacm.Config {
	return rdmacm.Config{MessageSize: messageLen, RecvQueue: 16, SendQueue: 4, AckTimeout: ackTimeout, PrivateData: g.encode()}
}

// dataConfig is the config of data connections.
func dataConfig(g greeting) rdmacm.Config {
	return rdmacm.Config{
		SendQueue: maxFlights*(maxFlightSlices+1) + maxUntaken, MessageSize: trailerLen, RecvQueue: maxUntaken, AckTimeout: ackTimeout, PrivateData: g.encode(),
	}
}

// beginSession makes a control connection and begins a session on it.
func (p *Peer) beginSession(ctx context.Context) (*rdmacm.Conn, *session, []address, error) {
	e := p.engine
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.dialer.ctx, cancel)() // when the peer is closed
	d := rdmacm.Dialer{Config: controlConfig(greeting{kind: kindControl})}
	conn, err := d.Dial(ctx, p.dialer.address)
	if err != nil {
		return nil, nil, nil, err
	}
	s, addresses, err := func() (*session, []address, error) {
		it, err := exchange(ctx, conn, func(en *encoder) {
			hello{e.incarnation, uint32(e.config.Mailbox), p.dialer.config.Credentials}.append(en)
		})
		if err != nil {
			return nil, nil, err
		}
		if it.kind != itemWelcome {
			return nil, nil, unwelcome(it)
		}
		w, err := decodeWelcome(it.body)
		if err != nil {
			return nil, nil, err
		}
		if verify := p.dialer.config.Verify; verify != nil {
			if err := verify(w.answer); err != nil {
				return nil, nil, fmt.Errorf("%w by Verify: %w", ErrRefused, err)
			}
		}
		p.dialer.at = conn.RemoteAddr()
		s := newSession(p, w.token, w.incarnation, w.mailbox)
		return s, w.addresses, p.begin(s)
	}()
	if err != nil {
		return nil, nil, nil, errors.Join(err, conn.Close())
	}
	return conn, s, addresses, nil
}

// exchange sends the first item on a control connection and returns the answer.
func exchange(ctx context.Context, conn *rdmacm.Conn, fill func(*encoder)) (item, error) {
	limited, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	failed := sendFirst(limited, conn, fill)
	it, err := receiveFirst(limited, conn) // may be a refusal that came with the end
	if err != nil && failed != nil {
		err = failed
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil { // not the caller's deadline
		err = fmt.Errorf("transfer: the peer does not answer: %w", syscall.ETIMEDOUT)
	}
	return it, err
}

// sendFirst sends an item that is not of the session's stream.
func sendFirst(ctx context.Context, conn *rdmacm.Conn, fill func(*encoder)) error {
	e := make(encoder, frameHeader)
	fill(&e)
	memory, err := conn.Alloc(len(e), 0)
	if err != nil {
		return err
	}
	copy(memory.Bytes(), e)
	return conn.Send(ctx, memory.All())
}

func receiveFirst(ctx context.Context, conn *rdmacm.Conn) (item, error) {
	m, err := conn.Receive(ctx)
	if err != nil {
		return item{}, err
	}
	f, err := decodeFrame(slices.Clone(m.Data))
	if err != nil {
		return item{}, err
	}
	it, ok, err := f.next()
	if err == nil && (!ok || len(f.items) > 0) {
		err = protocolError("a first frame that does not have one item")
	}
	return it, err
}

// unwelcome returns the error for an answer that is not what was asked for.
func unwelcome(it item) error {
	if it.kind != itemRefusal || len(it.body) == 0 {
		return protocolError("an answer of kind %d", it.kind)
	}
	text := string(it.body[1:])
	switch it.body[0] {
	case refusedSession:
		return errNoSession
	case refusedCredentials:
		return fmt.Errorf("%w by the peer: %s", ErrRefused, text)
	}
	return fmt.Errorf("transfer: refused: %s: %w", text, syscall.ECONNREFUSED)
}

var errNoSession = errors.New("transfer: the peer does not know the session")

// maintainSessions makes one session with the peer after the other until the
// peer is closed.
func (p *Peer) maintainSessions(conn *rdmacm.Conn, s *session, addresses []address) {
	d := p.dialer
	for s != nil || d.ctx.Err() == nil {
		if s == nil {
			var err error
			ctx, cancel := context.WithTimeout(d.ctx, dialTimeout)
			conn, s, addresses, err = p.beginSession(ctx)
			cancel()
			if errors.Is(err, ErrRefused) {
				go p.end(err) // waits for this goroutine
				return
			}
			if err != nil {
				p.setLastErr(addrPair{remote: d.address}.unanswered(err, dialTimeout))
				s = nil
				pause(d.ctx, p.backoff())
				continue
			}
		}
		began := time.Now()
		var paths sync.WaitGroup
		p.maintainPaths(&paths, s, addresses)
		_ = s.attach(conn, 0)
		p.reattach(s, addresses)
		paths.Wait()
		s = nil
		if time.Since(began) > maxBackoff {
			p.mu.Lock()
			p.attempts = 0
			p.mu.Unlock()
		}
		pause(d.ctx, p.backoff()) // a peer that ends each session must not keep this end busy
	}
}

// setLastErr records why no connection can be made.
func (p *Peer) setLastErr(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastErr = err
	p.changed()
}

// backoff returns how long to wait before the next attempt to begin a session.
func (p *Peer) backoff() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempts++
	return backoff(p.attempts)
}

func backoff(attempts int) time.Duration {
	return min(firstBackoff<<min(attempts, 10), maxBackoff)
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, how time.Duration) {
	t := time.NewTimer(how)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// reattach makes new control connections for a session until it ends. A peer
// that ends each one soon must not keep this end busy.
func (p *Peer) reattach(s *session, addresses []address) {
	for attempts := 0; s.ctx.Err() == nil; attempts++ {
		began := time.Now()
		p.resume(s, addresses)
		if time.Since(began) > maxBackoff {
			attempts = 0
		}
		// The session must survive the pause.
		pause(s.ctx, min(backoff(attempts), p.engine.config.RetryTimeout/4))
	}
}

// resume makes a new control connection for a session and runs it. If the peer
// does not know the session any more, or cannot be reached for
// Config.RetryTimeout, it ends the session.
func (p *Peer) resume(s *session, addresses []address) {
	began := time.Now()
	for attempts := 0; s.ctx.Err() == nil; attempts++ {
		if timeout := p.engine.config.RetryTimeout; time.Since(began) > timeout {
			p.mu.Lock()
			last := p.lastErr
			p.mu.Unlock()
			err := fmt.Errorf("transfer: the peer did not come back in %v: %w", timeout, syscall.ETIMEDOUT)
			if last != nil {
				err = fmt.Errorf("%w: %w", err, last)
			}
			s.end(err)
			return
		}
		// At first, a pair that does not answer does not take long, since
		// another may.
		timeout := dialTimeout >> max(4-attempts, 0)
		for _, pair := range p.addrPairs(addresses) {
			err := p.resumeBy(s, pair, timeout)
			switch {
			case err == nil:
				return
			case errors.Is(err, errNoSession):
				s.end(err)
				return
			}
			p.setLastErr(err)
		}
		pause(p.dialer.ctx, backoff(attempts))
	}
}

func (p *Peer) resumeBy(s *session, w addrPair, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	d := rdmacm.Dialer{Config: controlConfig(greeting{kind: kindControl}), LocalAddr: w.local}
	conn, err := d.Dial(ctx, w.remote)
	if err != nil {
		return w.unanswered(err, timeout)
	}
	received, err := func() (uint64, error) {
		it, err := exchange(ctx, conn, func(e *encoder) { appendResume(e, s.token, s.stream.receivedCount()) })
		if err != nil {
			return 0, err
		}
		if it.kind != itemResumed {
			return 0, unwelcome(it)
		}
		return decodeNumber(it)
	}()
	if err != nil {
		return errors.Join(w.unanswered(err, timeout), conn.Close())
	}
	cancel()
	_ = s.attach(conn, received)
	return nil
}

// addrPair is a pair of addresses of two devices.
type addrPair struct{ local, remote string }

// unanswered returns the error of an attempt that had a timeout. That one is
// not the deadline of a caller.
func (w addrPair) unanswered(err error, timeout time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("transfer: %s does not answer in %v: %w", w.remote, timeout, syscall.ETIMEDOUT)
	}
	return err
}

// addrPairs returns the pairs of addresses by which the peer may be reached.
func (p *Peer) addrPairs(addresses []address) []addrPair {
	all := []addrPair{{"", p.dialer.address}}
	for _, a := range addresses {
		for _, d := range p.engine.devices {
			all = append(all, addrPairsBetween(d, []netip.AddrPort{a.at}, p.dialer.at)...)
		}
	}
	return all
}

// addrPairsBetween returns the pairs of addresses between a device and
// addresses of one of the peer's devices. Loopback addresses are used only if
// the peer was dialed at one, and then alone.
func addrPairsBetween(d *device, remote []netip.AddrPort, dialed netip.AddrPort) []addrPair {
	var all []addrPair
	for _, r := range remote {
		for _, l := range d.addresses() {
			if l.Is4() == r.Addr().Is4() && l.IsLoopback() == r.Addr().IsLoopback() && r.Addr().IsLoopback() == dialed.Addr().IsLoopback() {
				all = append(all, addrPair{l.String(), r.String()})
			}
		}
	}
	// The address that was dialed is known to work.
	slices.SortStableFunc(all, func(a, b addrPair) int {
		switch at := dialed.String(); {
		case a.remote == at && b.remote != at:
			return -1
		case a.remote != at && b.remote == at:
			return 1
		}
		return 0
	})
	return all
}

// maintainPaths starts the goroutines that maintain the data connections: each
// device of this end is paired with one of the peer's, and the other way
// around.
func (p *Peer) maintainPaths(running *sync.WaitGroup, s *session, addresses []address) {
	byDevice := map[uint8][]netip.AddrPort{}
	var remote []uint8
	for _, a := range addresses {
		if byDevice[a.device] == nil {
			remote = append(remote, a.device)
		}
		byDevice[a.device] = append(byDevice[a.device], a.at)
	}
	if len(remote) == 0 {
		s.setLastErr(errors.New("transfer: the peer's engine has no device with the address"))
		return
	}
	devices := p.engine.devices
	pairs := max(len(devices), len(remote))
	p.mu.Lock()
	s.untried = pairs * p.engine.config.Connections
	p.mu.Unlock()
	for i := range pairs {
		local := devices[i%len(devices)]
		to := byDevice[remote[i%len(remote)]]
		for range p.engine.config.Connections {
			running.Go(func() { p.maintainPath(s, local, to) })
		}
	}
}

// maintainPath maintains one data connection until the session ends. A peer
// that ends each one soon must not keep this end busy.
func (p *Peer) maintainPath(s *session, local *device, to []netip.AddrPort) {
	tried := false
	for attempts := 0; s.ctx.Err() == nil; attempts++ {
		began := time.Now()
		pairs := addrPairsBetween(local, to, p.dialer.at)
		if len(pairs) == 0 {
			s.setLastErr(fmt.Errorf("transfer: no address of device %s fits one of the peer's, %v", local.name, to))
		}
		for _, w := range pairs {
			up, err := p.connect(s, local, w)
			if up {
				if time.Since(began) > maxBackoff {
					attempts = 0
				}
				break
			}
			s.setLastErr(err)
		}
		if !tried {
			tried = true
			p.mu.Lock()
			s.untried--
			p.changed()
			p.mu.Unlock()
		}
		pause(s.ctx, backoff(attempts))
	}
}

// connect makes a data connection, and returns when it is destroyed. up says
// whether it was up.
func (p *Peer) connect(s *session, local *device, w addrPair) (up bool, err error) {
	path, ctx, err := s.reservePath(p.dialer.numbers.Add(1), local)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	d := rdmacm.Dialer{Config: dataConfig(greeting{kindData, uint8(local.index), path.domain.generation, path.number, s.token}), LocalAddr: w.local}
	d.Config.PD = path.domain.pd
	conn, err := d.Dial(ctx, w.remote)
	var g greeting
	if err == nil {
		if g, err = decodeGreeting(conn.PeerData()); err == nil {
			err = conn.Send(ctx) // the peer waits for it: on iWARP, this end must be the first to send
		}
		if err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	if err != nil {
		s.dropPath(path)
		p.engine.connectionEnded(local, path.domain, err)
		return false, w.unanswered(err, dialTimeout)
	}
	err = s.runPath(path, conn, g)
	return err == nil, err
}
