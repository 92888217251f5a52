// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// A Peer is another engine, over any number of connections. Either end may read
// and write the other's regions. Its methods may be called concurrently.
type Peer struct {
	engine      *Engine
	name        string        // address of the other end
	credentials []byte        // credentials of the other end, if it has dialed
	dialer      *dialer       // nil if the other end has dialed
	done        chan struct{} // closed when the peer is closed, or has ended and is not dialed again

	passive atomic.Int32 // number of calls that wait for paths and do not poll

	mu        sync.Mutex
	closed    bool
	err       error
	session   *session // nil before the first, and between two
	pending   int      // requests that are submitted and not done
	head      *Batch   // circular queue of batches with requests to issue; its first is next
	finished  *Batch   // batches that are done, linked by next
	retries   []slice  // slices to post again
	noPath    time.Time
	mail      []mail         // notifications for the program
	change    chan struct{}  // closed when something has changed that calls wait for; nil: none waits
	reserving []*reservation // calls of Submit that wait for room, in their order
	timer     *time.Timer    // calls expire
	watched   bool           // whether the timer runs
	lastErr   error          // why no connection can be made
	attempts  int            // sessions in a row that did not begin or soon ended
	stats     Stats          // without what Stats fills in
	perDevice []DeviceStats  // by the device's index
}

// mail is a notification in the mailbox, or the end of a session.
type mail struct {
	err     error // why the session has ended
	session *session
	message []byte
}

func (e *Engine) newPeer(name string, d *dialer) *Peer {
	p := &Peer{engine: e, name: name, dialer: d, done: make(chan struct{}), noPath: time.Now()}
	for _, device := range e.devices {
		p.perDevice = append(p.perDevice, DeviceStats{Device: device.name})
	}
	p.timer = time.AfterFunc(time.Hour, p.expire)
	p.timer.Stop()
	return p
}

// String returns "peer" and the address of the other end.
func (p *Peer) String() string {
	if p == nil {
		return "nil Peer"
	}
	return "peer " + p.name
}

// Address returns the address of the other end: the one that was dialed, or
// that it has dialed from.
func (p *Peer) Address() string {
	if p == nil {
		return ""
	}
	return p.name
}

// Credentials returns what the other end showed to ListenConfig.Authenticate.
// It is empty if this end has dialed.
func (p *Peer) Credentials() []byte {
	if p.check("") != nil {
		return nil
	}
	return slices.Clone(p.credentials)
}

// Incarnation returns a number that the peer's engine chose at its start. It is
// 0 while there is no session. An end that has dialed compares it to learn that
// the peer's program has restarted; an end that was dialed gets a new Peer. A
// session that follows another one with the same engine has the same number:
// Stats counts sessions.
func (p *Peer) Incarnation() uint64 {
	if p.check("") != nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil || p.session.err != nil {
		return 0
	}
	return p.session.incarnation
}

// Engine returns the engine that the peer belongs to.
func (p *Peer) Engine() *Engine {
	if p == nil {
		return nil
	}
	return p.engine
}

// check returns an error if the Peer is nil or was not made by this package.
func (p *Peer) check(op string) error {
	if p == nil || p.engine == nil {
		return cerr.Refuse(op, "", "the Peer is nil or was not made by Engine.Dial or Listener.Accept")
	}
	return nil
}

// Done returns a channel that is closed when the peer is of no more use: it was
// closed, or it had dialed this end and its session has ended. A peer that this
// end has dialed is dialed again and again until Close, or until it refuses.
func (p *Peer) Done() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.done
}

// Err returns nil before Done's channel is closed, and then why: an error
// matching os.ErrClosed after Close, syscall.ECONNRESET if the peer closed the
// session, syscall.ETIMEDOUT if it did not come back, or syscall.EPROTO if it
// broke the protocol.
func (p *Peer) Err() error {
	if err := p.check("Peer.Err"); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close ends the session. It tells the peer, and waits up to a second for the
// peer to know. Requests that are not done fail with an error matching
// os.ErrClosed. An engine that has dialed this one dials again, and becomes
// another Peer unless ListenConfig.Authenticate refuses it. Close may be called
// more than once.
func (p *Peer) Close() error {
	if p == nil || p.engine == nil {
		return nil
	}
	p.mu.Lock()
	already := p.closed
	p.closed = true
	p.makeReservations()
	s := p.session
	var down <-chan struct{} // closed when there is no connection to tell the peer by
	if s != nil && s.control != nil {
		down = s.control.Done()
	}
	p.mu.Unlock()
	if already {
		<-p.done
		return nil
	}
	if down != nil {
		told := make(chan struct{})
		s.sendEnd(func(error) { close(told) })
		select {
		case <-told:
		case <-down:
		case <-time.After(time.Second):
		}
	}
	p.end(errPeerClosed)
	<-p.done // another goroutine may have been the first to end it
	return nil
}

// end ends the peer.
func (p *Peer) end(err error) {
	p.mu.Lock()
	s := p.session
	first := p.err == nil
	if first {
		p.err = err
		p.makeReservations()
	}
	p.mu.Unlock()
	if p.dialer != nil {
		p.dialer.stop()
	}
	if s != nil {
		s.end(err)
		s.awaitDestroyed()
	}
	if p.dialer != nil {
		p.dialer.running.Wait()
	}
	if !first {
		return
	}
	e := p.engine
	e.mu.Lock()
	delete(e.peers, p)
	e.mu.Unlock()
	p.mu.Lock()
	p.drop(everyRequest, p.err)
	p.changed()
	p.unlock()
	close(p.done)
}

// await waits until the connections of a session that has ended are destroyed.
func (s *session) awaitDestroyed() {
	s.peer.mu.Lock()
	var all []*path
	for _, p := range s.paths {
		all = append(all, p)
	}
	s.peer.mu.Unlock()
	for _, p := range all {
		<-p.destroyed
	}
	s.running.Wait()
}

// Region returns the peer's region with the name. It waits until the peer
// offers one, and fails with an error matching ctx.Err() if ctx ends first.
func (p *Peer) Region(ctx context.Context, name string) (r *RemoteRegion, err error) {
	const op = "Peer.Region"
	if err := cmp.Or(p.check(op), checkContext(op, ctx)); err != nil {
		return nil, err
	}
	if name == "" {
		return nil, cerr.Refuse(op, p.String(), "the name is empty")
	}
	err = p.await(ctx, func() bool {
		if p.session != nil {
			r = p.session.names[name]
		}
		return r != nil
	})
	if err != nil && err == ctx.Err() {
		err = fmt.Errorf("transfer: %v has not offered region %q: %w", p, name, err)
	}
	return r, err
}

// Regions returns an iterator over the regions that the peer offers at the time
// of the call.
func (p *Peer) Regions() iter.Seq[*RemoteRegion] {
	var all []*RemoteRegion
	if p.check("") == nil {
		p.mu.Lock()
		if p.session != nil {
			for _, r := range p.session.names {
				all = append(all, r)
			}
		}
		p.mu.Unlock()
	}
	return slices.Values(all)
}

// await waits until ok returns true, which is called with p.mu held.
func (p *Peer) await(ctx context.Context, ok func() bool) error {
	for {
		p.mu.Lock()
		if ok() {
			p.mu.Unlock()
			return nil
		}
		if p.err != nil {
			defer p.mu.Unlock()
			return p.err
		}
		change := p.awaitChange()
		p.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitChange returns a channel that the next change closes. The caller holds
// p.mu.
func (p *Peer) awaitChange() <-chan struct{} {
	if p.change == nil {
		p.change = make(chan struct{})
	}
	return p.change
}

// changed wakes the goroutines that wait for a change. The caller holds p.mu.
func (p *Peer) changed() {
	for _, path := range p.up() {
		if path.receiving.Load() {
			path.wake()
		}
	}
	if p.change != nil {
		close(p.change)
		p.change = nil
	}
}

// begin makes a session the peer's.
func (p *Peer) begin(s *session) error {
	p.mu.Lock()
	if p.err != nil || p.closed {
		p.mu.Unlock()
		return errPeerClosed
	}
	p.session = s
	p.stats.Sessions++
	p.changed()
	p.mu.Unlock()
	e := p.engine
	e.mu.Lock()
	regions := make([]*Region, 0, len(e.regions))
	for _, r := range e.regions {
		regions = append(regions, r)
	}
	e.mu.Unlock()
	slices.SortFunc(regions, func(a, b *Region) int { return int(a.id) - int(b.id) })
	for _, r := range regions {
		p.offer(r)
	}
	return nil
}

// offer tells the peer of a region, if the peer may know.
func (p *Peer) offer(r *Region) {
	if r.config.Allow != nil && !r.config.Allow(p) {
		return
	}
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s != nil {
		s.offer(r)
	}
}

func (p *Peer) withdraw(r *Region) (*session, <-chan struct{}) {
	p.mu.Lock()
	s := p.session
	p.mu.Unlock()
	if s == nil {
		return nil, nil
	}
	return s, s.withdraw(r)
}

// Send sends the peer a message of at most MaxNotification bytes, as a batch
// without requests would. It blocks until the message is in the peer's mailbox.
// If ctx ends while Send waits for a session or for room, also in the mailbox,
// nothing is sent and the error matches ctx.Err(). If ctx ends later, the error
// is a *PendingError, and the message may still arrive. While there is no
// connection or no session, Send waits for the next one. If the session ends
// before the peer is known to have the message, the error matches
// ErrSessionEnded, and the message may have arrived.
func (p *Peer) Send(ctx context.Context, message []byte) error {
	const op = "Peer.Send"
	if err := cmp.Or(p.check(op), checkContext(op, ctx), p.checkMessage(op, message)); err != nil {
		return err
	}
	b := p.NewBatch(0)
	if err := b.Notify(message); err != nil {
		return err
	}
	if err := b.Submit(ctx); err != nil {
		return err
	}
	err := b.Wait(ctx)
	if _, pending := errors.AsType[*PendingError](err); !pending {
		return err
	}
	b.Cancel() // the peer may have no room
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.err == ErrCanceled {
		return ctx.Err()
	}
	return err
}

// Receive waits for a notification of the peer and returns it. When the peer
// has ended and all its notifications were received, it returns the peer's Err.
// Notifications arrive in the order in which they were sent, which is about
// that in which their batches' requests were done, and after the regions that
// the peer offered before.
//
// At the end that has dialed, Receive fails once with an error matching
// ErrSessionEnded when a session has ended, after its notifications: what the
// program has asked before is not answered any more. Later calls return those
// of the next session.
func (p *Peer) Receive(ctx context.Context) ([]byte, error) {
	const op = "Peer.Receive"
	if err := cmp.Or(p.check(op), checkContext(op, ctx)); err != nil {
		return nil, err
	}
	for {
		p.mu.Lock()
		if len(p.mail) > 0 {
			defer p.mu.Unlock()
			return p.takeMail()
		}
		if err := cmp.Or(p.err, ctx.Err()); err != nil {
			p.mu.Unlock()
			return nil, err
		}
		path := p.onlyPath()
		if path != nil && path.tryBecomePoller() {
			p.mu.Unlock()
			p.poll(ctx, path)
			path.releasePoller()
			continue
		}
		change := p.awaitChange()
		p.mu.Unlock()
		if path == nil {
			p.beginPassiveWait()
			select {
			case <-change:
			case <-ctx.Done():
			}
			p.endPassiveWait()
		} else if has, _ := path.becomePoller(ctx, change); has {
			p.poll(ctx, path)
			path.releasePoller()
		}
	}
}

// takeMail takes the first element of the mailbox. The caller holds p.mu.
func (p *Peer) takeMail() ([]byte, error) {
	first := p.mail[0]
	p.mail = p.mail[1:]
	if first.err == nil {
		first.session.markTaken()
	}
	return first.message, first.err
}

// poll polls a path until there is mail, as long as no other path is up. The
// caller is the poller.
func (p *Peer) poll(ctx context.Context, path *path) {
	for err := error(nil); err == nil; {
		path.receiving.Store(true) // before the look at the mail, so that a change wakes
		p.mu.Lock()
		over := len(p.mail) > 0 || p.err != nil || p.onlyPath() != path
		p.mu.Unlock()
		if !over {
			err = path.await(ctx)
		}
		path.receiving.Store(false)
		if over {
			return
		}
		if err == nil {
			err = path.record()
		}
	}
}

// onlyPath returns the path if only one is up and works, or nil. The caller
// holds p.mu.
func (p *Peer) onlyPath() *path {
	if s := p.session; s != nil && len(s.up) == 1 && !s.up[0].stopped.Load() {
		return s.up[0]
	}
	return nil
}

// up returns the paths that are up. The end of a path wakes the call that polls
// it. The caller holds p.mu.
func (p *Peer) up() []*path {
	if p.session == nil {
		return nil
	}
	return p.session.up
}

// beginPassiveWait is called before a call waits for what the paths' background
// pollers record.
func (p *Peer) beginPassiveWait() {
	p.passive.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range p.up() {
		path.resumeBackground()
	}
}

// endPassiveWait is called after such a wait.
func (p *Peer) endPassiveWait() { p.passive.Add(-1) }

// Notifications returns an iterator over the results of Receive. It stops after
// the first error, also that of the end of a session.
func (p *Peer) Notifications(ctx context.Context) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for {
			message, err := p.Receive(ctx)
			if !yield(message, err) || err != nil {
				return
			}
		}
	}
}

// notify sends a batch's notification. The caller holds p.mu.
func (p *Peer) notify(b *Batch, done func(error)) {
	if p.session == nil {
		err := p.err
		if err == nil {
			err = ErrSessionEnded
		}
		go done(err)
		return
	}
	p.session.notify(notification{b, done})
}

// Work.

// reservation is a call of reserve that waits.
type reservation struct {
	n    int           // number of requests
	made chan struct{} // closed when they count as pending
}

// reserve waits for room for n more requests. Calls get it in their order:
// otherwise, small batches could keep a large one out for ever.
func (p *Peer) reserve(ctx context.Context, n int) error {
	p.mu.Lock()
	if err := p.whyEnded(); err != nil {
		defer p.mu.Unlock()
		return err
	}
	if len(p.reserving) == 0 && p.hasRoom(n) {
		p.pending += n
		p.mu.Unlock()
		return nil
	}
	r := &reservation{n, make(chan struct{})}
	p.reserving = append(p.reserving, r)
	p.mu.Unlock()

	p.beginPassiveWait()
	select {
	case <-r.made:
	case <-ctx.Done():
	}
	p.endPassiveWait()

	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.whyEnded()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		select {
		case <-r.made:
			p.pending -= n
		default:
			i := slices.Index(p.reserving, r)
			p.reserving = slices.Delete(p.reserving, i, i+1)
		}
		p.makeReservations() // for those behind it
	}
	return err
}

// hasRoom reports whether n more requests may be submitted. The caller holds
// p.mu.
func (p *Peer) hasRoom(n int) bool {
	return p.pending == 0 || p.pending+n <= p.engine.config.Pending
}

// makeReservations makes the reservations for which there is room, or all if
// the peer takes no more requests, which the calls then see. The caller holds
// p.mu.
func (p *Peer) makeReservations() {
	made := 0
	for _, r := range p.reserving {
		if p.whyEnded() == nil && !p.hasRoom(r.n) {
			break
		}
		p.pending += r.n
		close(r.made)
		made++
	}
	p.reserving = slices.Delete(p.reserving, 0, made)
}

// whyEnded returns why the peer takes no more requests, or nil. The caller
// holds p.mu.
func (p *Peer) whyEnded() error {
	if p.err == nil && p.closed {
		return errPeerClosed
	}
	return p.err
}

// enqueue adds a batch to the queue. The caller holds p.mu.
func (p *Peer) enqueue(b *Batch) {
	if p.head == nil {
		b.prev, b.next, p.head = b, b, b
		return
	}
	last := p.head.prev
	b.prev, b.next, last.next, p.head.prev = last, p.head, b, b
}

// dequeue takes a batch out of the queue, if it is in it. The caller holds
// p.mu.
func (p *Peer) dequeue(b *Batch) {
	if b.prev == nil {
		return
	}
	if b.next == b {
		p.head = nil
	} else {
		b.prev.next, b.next.prev = b.next, b.prev
		if p.head == b {
			p.head = b.next
		}
	}
	b.prev, b.next = nil, nil
}

// queued returns the batches in the queue, which may change meanwhile. The
// caller holds p.mu.
func (p *Peer) queued() iter.Seq[*Batch] {
	var all []*Batch
	for b := p.head; b != nil; b = b.next {
		all = append(all, b)
		if b.next == p.head {
			break
		}
	}
	return slices.Values(all)
}

// takeSlices fills a flight with slices for a path. The caller holds p.mu.
func (p *Peer) takeSlices(f *flight, path *path) {
	f.n, f.bytes, path.left = 0, 0, 0
	if len(p.retries) > 0 && p.takeRetries(f, path) {
		return
	}
	if p.head == nil {
		return
	}
	most := min(maxFlightBytes, int(share(p.head.total, path.session.devices)))
	var refused *Batch // the first of the batches that have nothing for this path
	for f.n < maxFlightSlices && f.bytes < most && p.head != nil && p.head != refused {
		b := p.head
		s := &f.slices[f.n]
		ok, more := b.issue(path, s)
		if ok {
			f.n++
			f.bytes += s.n
			refused, path.left = nil, 0
		} else if more && refused == nil {
			refused = b
		}
		switch {
		case !more:
			p.dequeue(b)
			if refused == b {
				refused = nil
			}
		case p.head == b:
			p.head = b.next // batches take turns
		}
	}
}

// takeRetries takes slices that failed before. It reports whether the flight
// must take no others.
func (p *Peer) takeRetries(f *flight, path *path) bool {
	kept := p.retries[:0]
	full := false
	for _, s := range p.retries {
		r := &s.batch.requests[s.request]
		err := r.err
		if err == nil {
			err = r.remote.check()
		}
		k, fits := r.key(path)
		switch {
		case err != nil:
			s.batch.sliceDone(&s, err)
		case full || f.n == maxFlightSlices || f.bytes >= maxFlightBytes || s.alone && f.n > 0 || !fits:
			kept = append(kept, s)
		default:
			s.key = k
			s.batch.spread = s.batch.spread || s.batch.firstPath != path
			f.slices[f.n] = s
			f.n++
			f.bytes += s.n
			full = s.alone
		}
	}
	clear(p.retries[len(kept):])
	p.retries = kept
	return full
}

// retry makes a slice be posted again, unless it is not wanted any more. The
// caller holds p.mu.
func (p *Peer) retry(s slice) {
	r := &s.batch.requests[s.request]
	err := r.err
	if err == nil && s.batch.canceled {
		err = ErrCanceled
	}
	if err == nil {
		err = r.remote.check()
	}
	if err != nil {
		s.batch.sliceDone(&s, err)
		return
	}
	p.retries = append(p.retries, s)
	p.watch()
}

// dropIf ends the slices that wait to be posted again and for which reason
// returns an error. The caller holds p.mu.
func (p *Peer) dropIf(reason func(s *slice) error) {
	all := p.retries
	p.retries = nil
	for i := range all {
		if err := reason(&all[i]); err != nil {
			all[i].batch.sliceDone(&all[i], err)
		} else {
			p.retries = append(p.retries, all[i])
		}
	}
}

// drop makes the requests that which chooses fail, but for those that are in
// flight as a whole. The caller holds p.mu.
func (p *Peer) drop(which func(b *Batch, r *request) bool, err error) {
	p.dropIf(func(s *slice) error {
		if which(s.batch, &s.batch.requests[s.request]) {
			return err
		}
		return nil
	})
	for b := range p.queued() {
		for i := b.nextRequest; i < len(b.requests); i++ {
			if r := &b.requests[i]; !r.done && r.issued < r.n && which(b, r) {
				b.failRequest(r, err)
			}
		}
	}
}

func everyRequest(*Batch, *request) bool { return true }

// postAll makes the paths post what is to be done, one after the other.
func (p *Peer) postAll() {
	for busy := true; busy; {
		busy = false
		for i := 0; ; i++ {
			path := p.pathAt(i)
			if path == nil {
				break
			}
			busy = path.post() || busy
		}
	}
}

// pathAt returns the path that posts as number i of a round, or nil if all have
// posted or there is nothing to post.
func (p *Peer) pathAt(i int) *path {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.session
	if s == nil || p.head == nil && len(p.retries) == 0 || i >= len(s.up) {
		return nil
	}
	if i == 0 {
		s.chooseFirst()
	}
	return s.up[(s.first+i)%len(s.up)]
}

// roundsInRow is the number of rounds that begin with one path, if nothing of
// it is in flight.
const roundsInRow = 64

// chooseFirst chooses the path that posts first. A program that waits for each
// of its small batches uses few paths at a time, since a path that was used
// last takes the least time to post and to wait for. The caller holds the
// peer's mu.
func (s *session) chooseFirst() {
	s.rounds++
	if s.rounds%roundsInRow == 0 || s.up[s.first%len(s.up)].inFlight > 0 {
		s.first++
	}
}

// finish records that a batch is done. The caller holds p.mu, and calls unlock.
func (p *Peer) finish(b *Batch) {
	b.state = finished
	b.prev, b.next = nil, p.finished
	p.finished = b
}

// unlock unlocks p.mu, and wakes those that wait for batches that are done.
func (p *Peer) unlock() {
	b := p.finished
	p.finished = nil
	for one := b; one != nil; one = one.next {
		p.pending -= one.weight()
	}
	if b != nil {
		p.makeReservations()
	}
	var polled []*path // by calls that wait for one of the batches, which few do when it is done
	if b != nil {
		for _, path := range p.up() {
			if one := path.awaited.Load(); one != nil && one.state == finished {
				polled = append(polled, path)
			}
		}
	}
	p.mu.Unlock()
	for b != nil {
		next := b.next
		b.next = nil
		b.release()
		b.done <- struct{}{}
		b = next
	}
	for _, path := range polled {
		path.wake()
	}
}

// watch makes expire be called until no request waits for a connection. The
// caller holds p.mu.
func (p *Peer) watch() {
	if !p.watched {
		p.watched = true
		p.timer.Reset(p.engine.config.RetryTimeout/8 + time.Millisecond)
	}
}

// expire makes requests fail that have waited too long for a connection.
func (p *Peer) expire() {
	defer p.postAll() // what waited behind a request that has failed
	p.mu.Lock()
	defer p.unlock()
	p.watched = false
	now, timeout := time.Now(), p.engine.config.RetryTimeout
	p.dropIf(func(s *slice) error {
		if now.After(s.deadline) {
			return timeoutError{s.err}
		}
		return nil
	})
	waits := len(p.retries) > 0
	if s := p.session; s != nil {
		for number, lost := range s.fences {
			for i := range lost {
				if sl := &lost[i]; sl.batch != nil && now.After(sl.deadline) {
					sl.abandon(timeoutError{sl.err})
					sl.batch = nil
				}
			}
			if lost = slices.DeleteFunc(lost, func(s slice) bool { return s.batch == nil }); len(lost) == 0 {
				delete(s.fences, number)
			} else {
				s.fences[number] = lost
				waits = true
			}
		}
	}
	if p.head != nil && !p.noPath.IsZero() {
		if now.Sub(p.noPath) > timeout {
			p.drop(everyRequest, timeoutError{p.lastErr})
		} else {
			waits = true
		}
	}
	for b := range p.queued() {
		b.expire(now, timeout)
		waits = true
	}
	if waits {
		p.watch()
	}
}
