// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Sizes of what is in flight on a path.
const (
	maxFlightSlices = 16      // work requests that are posted in one call
	maxFlights      = 8       // that are in flight at once
	maxFlightBytes  = 2 << 20 // after which a flight takes no more slices
	maxPathBytes    = 4 << 20 // after which a path posts no more flights

	// Where there are several devices, they share a request or a flight, but no
	// slice or flight is smaller than this because of that.
	minShare = 128 << 10
)

// share returns how many of n bytes one of the devices takes.
func share(n int64, devices int) int64 {
	if devices <= 1 {
		return n
	}
	const page = 4096
	return max((n/int64(devices)+page-1)/page*page, minShare)
}

// path is a data connection. Its requests are posted by the goroutine that has
// work or room for it.
type path struct {
	polling
	session *session
	number  uint32
	local   *device // of this end
	domain  *domain // of local
	remote  uint8   // index of the peer's device
	// generation is that of the peer's device.
	generation    uint8
	conn          *rdmacm.Conn
	batch         *ibverbs.SendBatch // of the goroutine that has set posting
	trailerMR     *ibverbs.MR        // of trailers
	trailerMemory []byte             // of trailerMR

	destroyed chan struct{} // closed when the path is destroyed at this end

	// Guarded by the peer's mu.
	free          []*flight
	inFlight      int           // number of flights that are not in free
	bytes         int           // sum of their bytes
	left          int           // bytes left to nearer paths since it has last taken a slice, or begun to
	posting       bool          // whether a goroutine posts
	trailerPosted bool          // whether the device has a trailer
	fenced        bool          // whether the peer has destroyed its end, and waits for this one
	down          bool          // whether the path takes no more slices
	cause         error         // why it is down
	ended         chan struct{} // closed when down is set
	cancel        context.CancelFunc
}

// flight is a number of slices that were posted in one call.
type flight struct {
	transfer rdmacm.Transfer
	slices   [maxFlightSlices]slice
	n        int
	bytes    int   // of the slices
	trailer  int   // number of bytes of the trailer that is posted behind the slices
	err      error // why they could not be posted
}

// slice is a part of a request, which one work request carries.
type slice struct {
	batch     *Batch
	request   int
	offset, n int
	alone     bool      // whether it must be posted alone, since it may be what failed the last flight
	deadline  time.Time // until when it is repeated; zero before its first failure
	key       key       // of the peer's region, for the path that it is posted on
	err       error     // its last failure
}

func newPath(s *session, number uint32, local *device, used *domain, cancel context.CancelFunc) (*path, error) {
	batch, err := ibverbs.NewSendBatch(maxFlightSlices+1, 1)
	if err != nil {
		return nil, err
	}
	p := &path{
		session: s, number: number, local: local, domain: used, batch: batch,
		destroyed: make(chan struct{}), ended: make(chan struct{}), cancel: cancel,
	}
	if err := p.polling.init(p.isReady); err != nil {
		return nil, err
	}
	for range maxFlights {
		p.free = append(p.free, new(flight))
	}
	return p, nil
}

// fail takes the path down. The caller holds the peer's mu.
func (p *path) fail(err error) {
	if p.down {
		return
	}
	p.down, p.cause = true, err
	close(p.ended)
	p.cancel()
	p.session.removePath(p)
	if p.conn != nil {
		go func() { _ = p.conn.Close() }() // makes flights fail
	}
}

// run makes the path take slices until it fails, and then closes its
// connection. It returns why the path failed.
func (p *path) run() error {
	peer := p.session.peer
	var background sync.WaitGroup
	background.Go(p.pollInBackground)
	p.postAll()
	peer.postAll()
	select {
	case <-p.stop:
	case <-p.conn.Done():
	case <-p.ended:
	}
	p.stopPolling()
	background.Wait()
	p.poller <- struct{}{} // and remain it
	p.releaseContext()
	p.receiveMessages() // what has arrived
	first := true       // whether no flight has failed yet
	for f := p.next(); f != nil; f = p.next() {
		if err := p.wait(f); err != nil {
			p.failFlight(f, err, first)
			first = false
		} else {
			p.complete(f)
			p.postAll()
		}
	}
	peer.postAll() // what other paths have left to this one
	_ = p.conn.Close()
	for peer.mu.Lock(); p.inFlight > 0; peer.mu.Lock() {
		peer.unlock()
		f := p.oldest()
		if f == nil {
			f = <-p.posted
		}
		p.head = nil
		if err := p.wait(f); err != nil {
			p.failFlight(f, err, first)
			first = false
		} else {
			p.complete(f)
		}
	}
	cause := p.cause
	peer.unlock()
	peer.engine.connectionEnded(p.local, p.domain, cause)
	return cause
}

// next returns the next flight, or nil once the path is down.
func (p *path) next() *flight {
	if p.oldest() == nil {
		select {
		case p.head = <-p.posted:
		case <-p.ended:
		case <-p.conn.Done():
			p.session.peer.mu.Lock()
			p.fail(p.conn.Err())
			p.session.peer.unlock()
		}
	}
	f := p.head
	p.head = nil
	return f
}

// setDestroyed is called when the path is destroyed at this end.
func (p *path) setDestroyed() {
	peer := p.session.peer
	peer.engine.leave(p.local, p.domain)
	close(p.destroyed)
	peer.mu.Lock()
	p.session.pathDestroyed(p)
	peer.unlock()
}

// wait waits until the device has done with a flight.
func (p *path) wait(f *flight) error {
	if f.err != nil {
		var pending *rdmacm.PendingError
		if errors.As(f.err, &pending) {
			_ = p.conn.Close() // otherwise, a device that is going may not end what it has
			_ = pending.Transfer.Wait(context.Background())
		}
		return f.err
	}
	return f.transfer.Wait(context.Background())
}

// complete records that the slices of a flight are done.
func (p *path) complete(f *flight) {
	peer := p.session.peer
	peer.mu.Lock()
	for i := range f.n {
		s := &f.slices[i]
		p.count(s)
		s.batch.sliceDone(s, nil)
	}
	p.recycle(f)
	peer.unlock()
}

func (p *path) count(s *slice) {
	counts := p.session.peer.on(p.local)
	counts.Slices++
	if s.batch.requests[s.request].write {
		counts.Written += uint64(s.n)
	} else {
		counts.Read += uint64(s.n)
	}
}

// carry records for each slice of a flight that it begins, with 1, or ends,
// with -1. The caller holds the peer's mu.
func (f *flight) carry(p *path, n int) {
	for i := 0; i < f.n; {
		b, first := f.slices[i].batch, i
		for i < f.n && f.slices[i].batch == b {
			i++
		}
		b.carry(p, n*(i-first))
	}
}

func (p *path) recycle(f *flight) {
	f.carry(p, -1)
	clear(f.slices[:f.n])
	if f.trailer > 0 {
		p.trailerPosted = false
	}
	p.inFlight--
	p.bytes -= f.bytes
	f.n, f.bytes, f.trailer, f.err = 0, 0, 0, nil
	p.free = append(p.free, f)
}

// failFlight records that a flight has failed. first says whether it is the
// first, whose error says more than that the path is down.
func (p *path) failFlight(f *flight, err error, first bool) {
	peer := p.session.peer
	peer.mu.Lock()
	defer peer.unlock()
	p.fail(err)
	first = first && permanent(err)
	for i := range f.n {
		s := f.slices[i]
		if first && f.n == 1 {
			s.batch.sliceDone(&s, err)
			continue
		}
		s.alone, s.err = s.alone || first, err
		if s.deadline.IsZero() {
			s.deadline = time.Now().Add(peer.engine.config.RetryTimeout)
		}
		peer.on(p.local).Repeated++
		p.session.stranded[p] = append(p.session.stranded[p], s)
	}
	p.recycle(f)
}

// postAll posts as much as there is work and room for.
func (p *path) postAll() {
	for p.post() {
	}
	if p.session.peer.engine.nearer != nil {
		p.session.peer.postAll() // what other paths have left to this one, and it has not taken
	}
}

// post takes slices and posts them in one call. It returns false if there is
// no work or no room, or another goroutine posts, which looks for work again.
func (p *path) post() bool {
	peer := p.session.peer
	peer.mu.Lock()
	if p.posting || p.down || len(p.free) == 0 || p.bytes >= maxPathBytes {
		peer.unlock()
		return false
	}
	f := p.free[len(p.free)-1]
	peer.takeSlices(f, p)
	if f.n == 0 {
		peer.unlock()
		return false
	}
	p.session.addTrailer(f, p)
	p.free = p.free[:len(p.free)-1]
	p.inFlight++
	p.bytes += f.bytes
	f.carry(p, 1)
	p.posting = true
	peer.unlock()

	misses := p.misses.Load()
	f.err = p.fill(f)
	if f.err == nil {
		f.err = p.conn.Post(context.Background(), &f.transfer, p.batch)
	}
	p.add(f, misses)
	peer.mu.Lock()
	p.posting = false
	peer.unlock()
	return true
}

var errRegionGone = errors.New("transfer: the device that had the region is gone")

// fill fills the path's batch with the slices of a flight.
func (p *path) fill(f *flight) error {
	p.batch.Reset()
	for i := range f.n {
		s := &f.slices[i]
		r := &s.batch.requests[s.request]
		mr := r.local.mrs[p.local.index].Load()
		if mr == nil || mr.domain != p.domain {
			return errRegionGone
		}
		from := mr.Sub(r.at+s.offset, s.n)
		to := s.key.remote(r.offset+uint64(s.offset), uint64(s.n))
		var err error
		if r.write {
			err = p.batch.Write(0, to, 0, from)
		} else {
			err = p.batch.Read(0, to, 0, from)
		}
		if err != nil {
			return err
		}
	}
	if f.trailer > 0 {
		return p.batch.Send(0, 0, p.trailerMR.Sub(0, f.trailer))
	}
	return nil
}
