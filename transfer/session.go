// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/rdmacm"
)

// session is what two engines have with each other from a hello until one of
// them ends it or is gone. Its connections may fail and be replaced.
type session struct {
	peer        *Peer
	token       token
	incarnation uint64 // of the peer's engine
	mailbox     uint64 // of the peer
	stream      *stream
	ctx         context.Context // ends with the session
	cancel      context.CancelFunc

	// Guarded by the peer's mu.
	err      error // why the session has ended
	regions  map[uint64]*RemoteRegion
	names    map[string]*RemoteRegion
	offered  map[*Region]chan struct{} // regions of this end that the peer knows; closed when it has no transfer to them any more
	ids      map[uint64]*Region        // the same, by the IDs of those that were withdrawn
	paths    map[uint32]*path          // all that are not destroyed
	up       []*path                   // those that take slices
	wasUp    bool                      // whether there was ever one
	devices  int                       // number of devices of this end that they are of
	untried  int                       // at the end that has dialed, data connections of which not all addresses were tried
	first    int                       // path that posts first, modulo their number
	rounds   int                       // rounds of posts
	fences   map[uint32][]slice        // slices of paths that are destroyed here, and may not be at the peer
	stranded map[*path][]slice         // slices of paths that are being destroyed
	trailer  trailer                   // notification that was sent behind its batch's data
	sent     uint64                    // notifications that were sent
	consumed uint64                    // of those, how many the peer's program has taken
	waiting  []notification            // notifications that the peer has no room for
	arrived  uint64                    // the peer's notifications that were put into the mailbox
	taken    uint64                    // of those, how many the program has taken
	credited uint64                    // of those, of how many the peer was told
	unread   int                       // the peer's notifications in the mailbox
	control  *rdmacm.Conn
	detach   context.CancelFunc // ends the use of control, and then closes it
	attached int                // number of control connections that there were
	endTimer *time.Timer        // ends the session unless the peer comes back; may be nil

	attaching sync.Mutex     // held by the goroutine that runs the control connection
	running   sync.WaitGroup // calls of attach
}

// notification is a notification to send.
type notification struct {
	batch *Batch      // that it is of
	done  func(error) // called without locks when the peer has it in its mailbox, or may not have it
}

func newSession(p *Peer, t token, incarnation uint64, mailbox uint32) *session {
	s := &session{
		peer: p, token: t, incarnation: incarnation, mailbox: uint64(mailbox), stream: newStream(),
		regions: map[uint64]*RemoteRegion{}, names: map[string]*RemoteRegion{}, offered: map[*Region]chan struct{}{}, ids: map[uint64]*Region{},
		paths: map[uint32]*path{}, fences: map[uint32][]slice{}, stranded: map[*path][]slice{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// requestError is what requests fail with after the end of the session. The
// caller holds the peer's mu.
func (s *session) requestError() error {
	if s.peer.closed {
		return errPeerClosed
	}
	return fmt.Errorf("%w: %w", ErrSessionEnded, s.err)
}

// end ends the session: its requests fail, and its connections are closed.
func (s *session) end(err error) {
	p := s.peer
	p.mu.Lock()
	if s.err != nil {
		p.unlock()
		return
	}
	s.err = err
	s.cancel()
	failed := s.requestError()
	p.drop(func(_ *Batch, r *request) bool { return r.remote.session == s }, failed)
	for _, path := range s.paths {
		path.fail(failed)
	}
	for number, lost := range s.fences {
		delete(s.fences, number)
		for i := range lost {
			lost[i].abandon(failed)
		}
	}
	if b := s.trailer.batch; b != nil && b.state == notifying {
		b.notified(failed)
	}
	for _, r := range s.regions {
		r.withdrawn = true
	}
	clear(s.names) // Peer.Region waits for the next session
	if s.endTimer != nil {
		s.endTimer.Stop()
	}
	for r, done := range s.offered {
		delete(s.offered, r)
		close(done)
	}
	waiting := s.waiting
	s.waiting, s.control = nil, nil
	if p.dialer != nil && p.session == s && !p.closed && (len(p.mail) == 0 || p.mail[len(p.mail)-1].err == nil) {
		p.mail = append(p.mail, mail{session: s, err: failed})
	}
	p.changed()
	p.unlock()

	s.stream.end(failed)
	for _, n := range waiting {
		n.done(failed)
	}
	e := p.engine
	e.mu.Lock()
	delete(e.sessions, s.token)
	e.mu.Unlock()
	e.log(slog.LevelInfo, "transfer: session ended", "peer", p.String(), "error", err)
}

// attach makes a control connection that of the session, and runs it until it
// or the session ends. received is how many items the peer has received.
func (s *session) attach(conn *rdmacm.Conn, received uint64) error {
	p := s.peer
	p.mu.Lock()
	if s.err != nil {
		defer p.mu.Unlock()
		return errors.Join(s.err, conn.Close())
	}
	if s.control != nil {
		s.detach() // the peer has given it up
	}
	// The connection is closed after its last use, and not to end that, since
	// Close frees the memory of messages.
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	s.control, s.detach = conn, cancel
	s.attached++
	s.running.Add(1)
	defer s.running.Done()
	p.mu.Unlock()
	s.attaching.Lock()
	defer s.attaching.Unlock()
	err := s.stream.restart(received)
	if err == nil {
		err = s.stream.run(ctx, conn, s.handle)
	}
	_ = conn.Close()
	p.mu.Lock()
	if s.control == conn {
		s.control = nil
	}
	p.mu.Unlock()
	if errors.Is(err, errProtocol) || errors.Is(err, errEnded) {
		s.end(err)
	}
	return err
}

// sendEnd tells the peer that this end closes the session. done is called when
// the peer knows. What this end's program has received counts as arrived at the
// peer, even if its acknowledgement is still on the way.
func (s *session) sendEnd(done func(error)) {
	s.stream.awaitHandled()
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	s.stream.add(done, func(e *encoder) { appendNumber(e, itemEnd, s.arrived) })
}

var errEnded = fmt.Errorf("transfer: the peer closed the session: %w", syscall.ECONNRESET)

// handle handles an item of the stream.
func (s *session) handle(it item) error {
	p := s.peer
	switch it.kind {
	case itemOffer:
		o, err := decodeOffer(it.body)
		if err != nil {
			return err
		}
		err = s.takeOffer(o)
		p.postAll() // if a path can carry more with the keys
		return err
	case itemNotify:
		return s.takeNotification(it.body)
	case itemFenced:
		number, arrived, err := decodeFenced(it)
		if err == nil {
			err = s.fenced(number, arrived)
			p.postAll()
		}
		return err
	}
	n, err := decodeNumber(it)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer func() {
		p.unlock()
		p.postAll()
	}()
	if s.err != nil {
		return s.err
	}
	if it.kind == itemWithdraw || it.kind == itemFence {
		if err := s.stream.mayAsk(); err != nil {
			return err
		}
	}
	switch it.kind {
	case itemWithdraw:
		r := s.regions[n]
		if r == nil {
			return protocolError("withdrawal of region %d, which it has not offered", n)
		}
		delete(s.regions, n)
		if s.names[r.offer.name] == r {
			delete(s.names, r.offer.name)
		}
		r.inFlight++ // so that the requests that are dropped do not answer
		r.withdrawn = true
		p.drop(func(_ *Batch, q *request) bool { return q.remote == r }, ErrWithdrawn)
		r.release()
	case itemWithdrawn:
		r := s.ids[n]
		if r == nil {
			return protocolError("answer to a withdrawal of region %d", n)
		}
		delete(s.ids, n)
		close(s.offered[r])
		delete(s.offered, r)
	case itemFence:
		return s.destroyFenced(uint32(n))
	case itemEnd:
		if err := s.checkArrived(n); err != nil {
			return err
		}
		if s.trailer.path != nil {
			s.trailerDone(n == s.sent)
		}
		return errEnded
	case itemCredit:
		if n < s.consumed || n > s.sent {
			return protocolError("credit for %d of %d notifications", n, s.sent)
		}
		s.consumed = n
		s.sendWaiting()
	default:
		return protocolError("item of kind %d", it.kind)
	}
	return nil
}

// takeOffer handles a region that the peer offers, or its new keys.
func (s *session) takeOffer(o offer) error {
	p := s.peer
	p.mu.Lock()
	defer p.unlock()
	if s.err != nil {
		return s.err
	}
	if r := s.regions[o.id]; r != nil {
		if o.name != r.offer.name || o.length != r.offer.length || o.access != r.offer.access {
			return protocolError("offer of region %d with another name, size or access", o.id)
		}
		r.offer.keys = o.keys
		p.changed()
		return nil
	}
	if len(s.regions) >= p.engine.config.Offers {
		return protocolError("more than %d regions; see Config.Offers", p.engine.config.Offers)
	}
	if s.names[o.name] != nil {
		return protocolError("two regions with the name %q", o.name)
	}
	r := &RemoteRegion{session: s, offer: o}
	s.regions[o.id], s.names[o.name] = r, r
	p.changed()
	return nil
}

// release records that a slice to the region is done. The caller holds the
// peer's mu.
func (r *RemoteRegion) release() {
	r.inFlight--
	if r.inFlight == 0 && r.withdrawn && r.session.err == nil {
		r.session.stream.add(nil, func(e *encoder) { appendNumber(e, itemWithdrawn, r.offer.id) })
	}
}

// offer tells the peer of a region, or of its new keys, unless the region is
// closed.
func (s *session) offer(r *Region) {
	e := s.peer.engine
	o := offer{id: r.id, length: uint64(r.length), access: r.config.Access, name: r.config.Name}
	s.peer.mu.Lock()
	defer s.peer.unlock()
	e.mu.Lock()
	open := e.regions[r.id] == r
	e.mu.Unlock()
	if !open || s.err != nil {
		return
	}
	for i := range e.devices {
		if mr := r.mrs[i].Load(); mr != nil {
			at := mr.Remote()
			o.keys[i] = key{true, mr.domain.generation, at.Addr, at.RKey}
		}
	}
	if s.offered[r] == nil {
		s.offered[r] = make(chan struct{})
	}
	s.stream.add(nil, o.append)
}

// withdraw takes back an offer. The channel is closed when the peer has no
// transfer to or from the region any more; it is nil if the peer was not told
// of the region.
func (s *session) withdraw(r *Region) <-chan struct{} {
	s.peer.mu.Lock()
	defer s.peer.unlock()
	done := s.offered[r]
	if done != nil && s.ids[r.id] == nil {
		s.ids[r.id] = r
		s.stream.add(nil, func(e *encoder) { appendNumber(e, itemWithdraw, r.id) })
	}
	return done
}

// Paths.

// maxPaths is the number of paths that a peer may make.
const maxPaths = 4096

// reservePath makes room for a path, so that the peer can tell of its end
// before it is up. ctx ends when the path is not wanted any more.
func (s *session) reservePath(number uint32, local *device) (*path, context.Context, error) {
	used, err := s.peer.engine.use(local)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(s.ctx)
	p, err := newPath(s, number, local, used, cancel)
	if err != nil {
		cancel()
		s.peer.engine.leave(local, used)
		return nil, nil, err
	}
	s.peer.mu.Lock()
	switch {
	case s.err != nil:
		err = s.err
	case s.paths[number] != nil || s.fences[number] != nil:
		err = protocolError("another connection with the number %d", number)
	case len(s.paths) >= maxPaths:
		err = protocolError("more than %d connections", maxPaths)
	}
	if err == nil {
		s.paths[number] = p
	}
	s.peer.mu.Unlock()
	if err != nil {
		cancel()
		s.peer.engine.leave(local, used)
		return nil, nil, err
	}
	return p, ctx, nil
}

// runPath makes a path with a connection take slices, until it fails. It
// returns when the path is destroyed, with an error if it was never up.
func (s *session) runPath(p *path, conn *rdmacm.Conn, g greeting) error {
	var memory []byte
	mr, err := conn.Alloc(trailerLen, 0)
	if err == nil {
		memory = mr.Bytes()
	}
	if memory == nil {
		if err == nil {
			err = errors.New("transfer: the connection has ended")
		}
		_ = conn.Close()
		s.dropPath(p)
		return err
	}
	s.peer.mu.Lock()
	p.conn, p.trailerMR, p.trailerMemory, p.remote, p.generation = conn, mr, memory, g.device, g.generation
	isUp := !p.down
	if isUp {
		s.up, s.wasUp = append(s.up, p), true
		s.countDevices()
		s.peer.on(p.local).Made++
		s.peer.noPath = time.Time{}
		s.peer.changed()
	}
	s.peer.unlock()
	about := []any{"peer", s.peer.String(), "device", p.local.name, "number", p.number}
	if isUp {
		s.peer.engine.log(slog.LevelInfo, "transfer: connected", about...)
	}
	err = p.run()
	if isUp {
		s.peer.engine.log(slog.LevelInfo, "transfer: connection lost", append(about, "error", err)...)
		s.setLastErr(err) // requests may wait because of it
		err = nil
	}
	p.setDestroyed()
	return err
}

// setLastErr records why the session has no data connection, unless the session
// has ended: the error is not for the next one.
func (s *session) setLastErr(err error) {
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	if s.err == nil {
		s.peer.lastErr = err
		s.peer.changed()
	}
}

// dropPath ends a path that got no connection.
func (s *session) dropPath(p *path) {
	s.peer.mu.Lock()
	p.fail(errors.New("transfer: no connection"))
	s.peer.unlock()
	p.setDestroyed()
}

func (s *session) countDevices() {
	s.devices = 0
	for i, p := range s.up {
		if !slices.ContainsFunc(s.up[:i], func(other *path) bool { return other.local == p.local }) {
			s.devices++
		}
	}
}

// removePath makes a path take no more slices. The caller holds the peer's mu.
func (s *session) removePath(p *path) {
	if i := slices.Index(s.up, p); i >= 0 {
		s.up = slices.Delete(s.up, i, i+1)
		s.countDevices()
		s.peer.on(p.local).Lost++
	}
	if len(s.up) == 0 && s.peer.noPath.IsZero() {
		s.peer.noPath = time.Now()
		s.peer.watch()
	}
	s.peer.changed()
}

// pathDestroyed is called when a path is destroyed at this end. Its slices must
// not be posted again before it is destroyed at the peer, too: until then, what
// the path has carried may still arrive, and would overwrite what comes later.
// The caller holds the peer's mu.
func (s *session) pathDestroyed(p *path) {
	delete(s.paths, p.number)
	p.cancel()
	lost := s.stranded[p]
	delete(s.stranded, p)
	switch {
	case len(lost) == 0 && s.trailer.path != p:
	case s.err != nil:
		for i := range lost {
			lost[i].abandon(s.requestError())
		}
	default:
		s.fences[p.number] = append([]slice{}, lost...) // not nil
		s.stream.add(nil, func(e *encoder) { appendNumber(e, itemFence, uint64(p.number)) })
		s.peer.watch()
	}
}

// destroyFenced destroys a path of which the peer has destroyed its end, and
// tells the peer. The caller holds the peer's mu.
func (s *session) destroyFenced(number uint32) error {
	tell := func() {
		s.stream.add(nil, func(e *encoder) { appendFenced(e, number, s.arrived) })
	}
	p := s.paths[number]
	switch {
	case p == nil:
		tell()
		return nil
	case p.fenced:
		return protocolError("connection %d was destroyed twice", number)
	}
	p.fenced = true
	p.fail(errFenced)
	go func() {
		<-p.destroyed
		s.peer.mu.Lock()
		defer s.peer.mu.Unlock()
		tell()
	}()
	return nil
}

var errFenced = fmt.Errorf("transfer: the peer has closed the connection: %w", syscall.ECONNRESET)

// checkArrived returns an error if it is not possible that so many of this
// end's notifications have arrived. The caller holds the peer's mu.
func (s *session) checkArrived(n uint64) error {
	if n < s.consumed || n > s.sent {
		return protocolError("%d of %d notifications have arrived, of which %d were taken", n, s.sent, s.consumed)
	}
	return nil
}

// fenced makes the slices of a path be posted again, except those of a batch
// whose trailer has arrived. That many notifications have.
func (s *session) fenced(number uint32, arrived uint64) error {
	s.peer.mu.Lock()
	defer s.peer.unlock()
	if err := cmp.Or(s.err, s.checkArrived(arrived)); err != nil {
		return err
	}
	if p := s.trailer.path; p != nil && p.number == number {
		s.trailerDone(arrived == s.sent)
	}
	lost := s.fences[number]
	delete(s.fences, number)
	for _, sl := range lost {
		if sl.batch.trailerArrived {
			sl.batch.sliceDone(&sl, nil) // the peer's program may use the place again
		} else {
			s.peer.retry(sl)
		}
	}
	return nil
}

// Notifications.

// notify sends a notification when the peer has room for it. The caller holds
// the peer's mu.
func (s *session) notify(n notification) {
	if s.err != nil {
		go n.done(s.requestError())
		return
	}
	s.waiting = append(s.waiting, n)
	s.sendWaiting()
}

func (s *session) sendWaiting() {
	for len(s.waiting) > 0 && s.trailer.path == nil && s.sent-s.consumed < s.mailbox {
		n := s.waiting[0]
		s.waiting = s.waiting[1:]
		s.sent++
		s.stream.add(n.done, func(e *encoder) {
			end := e.item(itemNotify)
			e.raw(n.batch.message)
			end()
		})
	}
}

// forgetWaiting makes the session forget a batch's notification for which the
// peer has no room, and reports whether there was one. The caller holds the
// peer's mu.
func (s *session) forgetWaiting(b *Batch) bool {
	i := slices.IndexFunc(s.waiting, func(n notification) bool { return n.batch == b })
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

// maxMailboxes is how often a peer that begins anew may fill the mailbox while
// the program takes nothing.
const maxMailboxes = 4

// takeNotification puts a notification into the mailbox.
func (s *session) takeNotification(body []byte) error {
	p := s.peer
	if len(body) > MaxNotification {
		return protocolError("notification of %d bytes", len(body))
	}
	p.mu.Lock()
	defer p.unlock()
	most := p.engine.config.Mailbox
	switch {
	case s.err != nil:
		return s.err
	case s.unread >= most:
		return protocolError("notification for which there is no room")
	case len(p.mail) >= maxMailboxes*most:
		return fmt.Errorf("%w: the mailbox is full with notifications of earlier sessions", errEnded)
	}
	if err := s.stream.mayAsk(); err != nil { // for more credit
		return err
	}
	s.unread++
	s.arrived++
	p.stats.Received++
	p.mail = append(p.mail, mail{session: s, message: slices.Clone(body)})
	p.changed()
	return nil
}

// markTaken records that the program has taken a notification. The caller holds
// the peer's mu.
func (s *session) markTaken() {
	s.unread--
	s.taken++
	if s.err == nil && (s.taken-s.credited >= uint64(s.peer.engine.config.Mailbox+3)/4) {
		s.credited = s.taken
		s.stream.add(nil, func(e *encoder) { appendNumber(e, itemCredit, s.taken) })
	}
}
