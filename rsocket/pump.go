// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// pump takes completions from a completion queue, which belongs to one
// connection or to a part of a pool. It has no goroutine: each goroutine that
// has to wait tries to get the pump. The one that holds it takes completions
// for all connections until its own wait is over. The others wait for the wake
// of their side, or for the pump.
type pump struct {
	channel *ibverbs.CompChannel
	cq      *ibverbs.CQ
	only    *Conn         // nil in a part of a pool
	lock    chan struct{} // full while a goroutine holds the pump
	wcs     []ibverbs.WC  // scratch space of that goroutine

	mu     sync.Mutex      // guards the fields below
	over   []*Conn         // connections whose rdmacm.Conn has ended, and which have yet to be told
	asked  []chan struct{} // closed once all present completions were taken
	failed bool
	byNum  map[uint32]*Conn

	// Receives, in a part of a pool.
	recv     *ibverbs.RecvBatch
	postRecv func(*ibverbs.RecvBatch) (int, error)
	want     int // number that should be posted
	posted   int // number that has not completed
}

func (p *pump) init(only *Conn) {
	p.only, p.lock = only, make(chan struct{}, 1)
}

// create creates the completion queue. After an error, the caller calls close.
func (p *pump) create(device *ibverbs.Device, entries int, spin time.Duration) (err error) {
	if p.channel, err = device.CreateCompChannel(); err != nil {
		return err
	}
	p.cq, err = device.CreateCQ(ibverbs.CQConfig{Entries: entries, Channel: p.channel, Spin: spin})
	p.wcs = make([]ibverbs.WC, completions)
	return err
}

// completions is the number of completions taken at a time.
const completions = 32

func (p *pump) close() error {
	var errs []error
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.channel != nil {
		errs = append(errs, p.channel.Close())
	}
	return errors.Join(errs...)
}

// add makes the pump deliver the completions of a connection's queue pair. If
// an earlier queue pair had the same number, add first takes all completions of
// that one.
func (p *pump) add(c *Conn) {
	num := c.qp.Num()
	p.mu.Lock()
	_, taken := p.byNum[num]
	p.mu.Unlock()
	if taken {
		p.takeAll()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byNum[num] = c
}

func (p *pump) remove(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if num := c.qp.Num(); p.byNum[num] == c {
		delete(p.byNum, num)
	}
	p.over = slices.DeleteFunc(p.over, func(other *Conn) bool { return other == c })
}

// find returns the connection of a completion, or nil.
func (p *pump) find(wc *ibverbs.WC) *Conn {
	if p.only != nil {
		return p.only
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byNum[wc.QPNum()]
}

// ended records that the rdmacm.Conn of c has ended, and wakes the goroutine
// that holds the pump. It does nothing if c is no longer in the pump.
func (p *pump) ended(c *Conn) {
	p.mu.Lock()
	if p.only == nil && p.byNum[c.qp.Num()] != c {
		p.mu.Unlock()
		return
	}
	p.over = append(p.over, c)
	p.mu.Unlock()
	p.cq.Wake()
}

// takeAll takes all present completions, or waits until the goroutine that
// holds the pump has done so.
func (p *pump) takeAll() {
	taken := make(chan struct{})
	p.mu.Lock()
	p.asked = append(p.asked, taken)
	p.mu.Unlock()
	p.cq.Wake()
	select {
	case <-taken:
	case p.lock <- struct{}{}:
		p.tell()
		<-p.lock
	}
}

// tell takes all present completions for goroutines in takeAll and for
// connections whose rdmacm.Conn has ended, and then tells them. The caller
// holds the pump.
func (p *pump) tell() {
	p.mu.Lock()
	over, asked := p.over, p.asked
	p.over, p.asked = nil, nil
	p.mu.Unlock()
	if len(over)+len(asked) == 0 {
		return
	}
	p.empty()
	for _, taken := range asked {
		close(taken)
	}
	for _, c := range over {
		c.finish()
	}
}

// background is the context of most waits, which CQ.Wake ends.
var background = context.Background()

// lead takes completions until the side is woken. It returns an error when the
// deadline has passed or the connection is closed. The caller holds the pump.
func (p *pump) lead(c *Conn, s *side) error {
	for {
		p.tell()
		switch {
		case fired(s.wake): // first, as the caller's condition may be met
			return nil
		case fired(c.closed):
			return net.ErrClosed
		case s.deadline.hasPassed():
			return os.ErrDeadlineExceeded
		}
		n, err := p.cq.Wait(background, p.wcs)
		if n > 0 || err != nil {
			p.handle(n, err)
		}
	}
}

// await takes completions, or lets another goroutine do so, until the function
// returns true. Its result may change when a request of the connection
// completes or the connection ends. await returns early when the context ends
// or the queue fails. The caller owns c.closer.
func (p *pump) await(ctx context.Context, c *Conn, until func() bool) {
	for !until() {
		select {
		case <-c.closer.wake:
			continue
		case <-ctx.Done():
			return
		case p.lock <- struct{}{}:
		}
		var failed error
		for failed == nil && !until() {
			p.tell()
			if until() {
				break
			}
			var n int
			n, failed = p.cq.Wait(ctx, p.wcs)
			if failed != nil && ctx.Err() != nil {
				p.handle(n, nil)
			} else {
				p.handle(n, failed)
			}
		}
		<-p.lock
		if failed != nil {
			return
		}
	}
}

// poll takes the present completions, unless another goroutine holds the pump.
func (p *pump) poll() {
	select {
	case p.lock <- struct{}{}:
	default:
		return
	}
	if n, err := p.cq.Poll(p.wcs); n > 0 || err != nil {
		p.handle(n, err)
	}
	<-p.lock
}

// empty takes all present completions. The caller holds the pump.
func (p *pump) empty() {
	for left := p.cq.Cap(); left > 0; {
		n, err := p.cq.Poll(p.wcs)
		if n > 0 || err != nil {
			p.handle(n, err)
		}
		if n == 0 {
			return
		}
		left -= n
	}
}

// handle delivers the first n of p.wcs. err is the queue's failure, if any. The
// caller holds the pump.
func (p *pump) handle(n int, err error) {
	wcs := p.wcs[:n]
	if p.only != nil {
		p.only.handle(wcs, err)
		return
	}
	p.repost(wcs)
	for len(wcs) > 0 {
		k := 1
		for k < len(wcs) && wcs[k].QPNum() == wcs[0].QPNum() {
			k++
		}
		if c := p.find(&wcs[0]); c != nil { // else it is gone
			c.handle(wcs[:k], nil)
		}
		wcs = wcs[k:]
	}
	if err == nil {
		return
	}
	p.mu.Lock()
	p.failed = true
	var all []*Conn
	for _, c := range p.byNum {
		all = append(all, c)
	}
	p.mu.Unlock()
	for _, c := range all {
		c.handle(nil, err)
	}
}

// hasFailed reports whether the completion queue has failed.
func (p *pump) hasFailed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// wantReceives changes the number of posted receives by n. A decrease takes
// effect as receives complete.
func (p *pump) wantReceives(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.want += n
	p.refill()
}

// repost replaces completed receives.
func (p *pump) repost(wcs []ibverbs.WC) {
	n := 0
	for i := range wcs {
		if wcs[i].ID() == receiveID {
			n++
		}
	}
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.posted -= n
	p.refill()
}

// refill posts missing receives. If C refuses them, the next call tries again.
// The caller holds p.mu.
func (p *pump) refill() {
	for p.posted < p.want {
		n, err := postSome(p.recv, p.want-p.posted, p.postRecv)
		p.posted += n
		if err != nil {
			return
		}
	}
}

// postSome posts up to n receives, and returns their number.
func postSome(batch *ibverbs.RecvBatch, n int, post func(*ibverbs.RecvBatch) (int, error)) (int, error) {
	batch.Reset()
	for range min(n, recvBatch) {
		if err := batch.Recv(receiveID); err != nil {
			return 0, err
		}
	}
	return post(batch)
}

// wait waits until the side's condition may have changed. The caller owns the
// side and holds c.mu, which wait unlocks meanwhile.
func (c *Conn) wait(s *side) error {
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case c.pump.lock <- struct{}{}: // the usual case; the select below takes longer
		err := c.pump.lead(c, s)
		<-c.pump.lock
		return err
	default:
	}
	passed := s.deadline.wait()
	switch {
	case fired(c.closed):
		return net.ErrClosed
	case fired(passed):
		return os.ErrDeadlineExceeded
	}
	select {
	case <-s.wake:
	case <-c.closed:
	case <-passed:
	case c.pump.lock <- struct{}{}:
		err := c.pump.lead(c, s)
		<-c.pump.lock
		return err
	}
	return nil
}

// finish fails a connection whose rdmacm.Conn has ended.
func (c *Conn) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Disconnected() {
		c.fail(errReset)
	} else {
		c.fail(endedBy(c.over))
	}
}

// handle handles completions of the connection. err is the queue's failure, if
// any. The caller holds the pump.
func (c *Conn) handle(wcs []ibverbs.WC, err error) {
	c.mu.Lock()
	c.take(wcs)
	if err != nil {
		c.fail(failure(err))
	}
	aborts := c.aborts
	c.aborts = false
	c.mu.Unlock()
	if aborts {
		_ = c.rdma.ID().Disconnect() // fails if the peer was faster
	}
}

// receiveID is the ID of all receives. No request has it.
const receiveID = 1 << 63

func (c *Conn) take(wcs []ibverbs.WC) {
	if !c.connected { // the peer's Hello is not known yet
		c.early = append(c.early, wcs[:max(0, min(len(wcs), c.config.RecvQueue+spareReceives-len(c.early)))]...)
		return
	}
	var flushed error
	for i := range wcs {
		wc := &wcs[i]
		if wc.ID() != receiveID && wc.ID() != 0 {
			c.inFlight--
		}
		switch {
		case wc.Status() == ibverbs.WCFlushed:
			flushed = wc.Err()
		case wc.Status() != ibverbs.WCSuccess:
			if !c.state.Disconnected() { // otherwise the peer need not answer
				c.fail(failure(wc.Err()))
			}
		case wc.ID() == receiveID:
			if c.part == nil {
				c.owed++
			}
			c.receive(wc)
		default:
			c.complete(wc.ID())
		}
	}
	if flushed != nil {
		c.flushed(flushed)
	}
	c.closer.signal()
	c.settle()
}

// flushed handles a flushed request. rdmacm usually reports the cause a moment
// later.
func (c *Conn) flushed(err error) {
	if c.err != nil || c.isOver || c.awaitsCause || c.state.Disconnected() {
		return
	}
	c.awaitsCause = true
	time.AfterFunc(causePatience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.isOver {
			c.fail(failure(err))
		}
	})
}

// causePatience is how long rdmacm may take to report why requests were
// flushed.
const causePatience = time.Second

// receive handles a message.
func (c *Conn) receive(wc *ibverbs.WC) {
	word, ok := wc.Imm()
	err := errNoWord
	if ok {
		err = c.state.Receive(protocol.Word(word), wc.ByteLen(), c.table)
	}
	if err != nil && c.err == nil {
		c.fail(err)
		c.aborts = true
	}
	if c.state.Unread() > 0 || c.state.Ended() {
		c.reader.signal()
	}
	if protocol.Word(word).Kind() != protocol.KindData {
		c.writer.signal()
	}
}

var errNoWord = fmt.Errorf("a message without a word: %w", protocol.ErrViolation)

// complete handles the completion of a request.
func (c *Conn) complete(id uint64) {
	c.state.Complete(protocol.ID(id & idMask))
	if chunk := id >> chunkShift; chunk > 0 {
		c.direct.pending[chunk-1]--
	}
	c.giveBack()
	c.writer.signal()
}

// settle posts what is due.
func (c *Conn) settle() {
	c.postReceives()
	c.post(c.state.Update())
}

// postReceives posts the receives that are missing.
func (c *Conn) postReceives() {
	for c.owed > 0 && c.err == nil && !c.isOver {
		n, err := postSome(c.recv, c.owed, c.qp.PostRecv)
		if err != nil {
			c.fail(failure(err))
		}
		c.owed -= n
	}
}

// post posts a request if it is due. The caller holds c.mu.
func (c *Conn) post(p protocol.Post, due bool) {
	switch {
	case !due || c.err != nil || c.isOver:
		return
	case p.HasEntry:
		place := c.control.Sub(p.Slot*protocol.EntryLen, protocol.EntryLen)
		copy(place.Bytes(), p.Entry[:])
		c.segments[0] = place
		c.postMessage(uint64(p.ID), p, c.segments[:1])
	case p.Word == protocol.KeepAlive:
		c.send.Reset()
		c.posted(uint64(p.ID), c.send.Write(uint64(p.ID), ibverbs.RemoteBuffer{}, ibverbs.SendSignaled))
	default:
		c.postMessage(uint64(p.ID), p, nil)
	}
}

// postData posts data of the send buffer.
func (c *Conn) postData(p protocol.Post) {
	n := min(p.Len, c.sendBuffer.Len()-p.Offset)
	c.segments[0] = c.sendBuffer.Sub(p.Offset, n)
	segments := c.segments[:1]
	if n < p.Len {
		c.segments[1] = c.sendBuffer.Sub(0, p.Len-n)
		segments = c.segments[:2]
	}
	c.postMessage(uint64(p.ID), p, segments)
}

// postMessage posts a write of the segments, with the word.
func (c *Conn) postMessage(id uint64, p protocol.Post, segments []ibverbs.Segment) {
	var to ibverbs.RemoteBuffer
	flags, n := ibverbs.SendFlags(0), 0
	if id != 0 {
		flags = ibverbs.SendSignaled
	}
	for _, s := range segments {
		n += s.Len()
	}
	if n > 0 {
		to = ibverbs.RemoteBuffer{Addr: p.To.Addr, RKey: p.To.Key, Len: uint64(n)}
		if n <= c.maxInline {
			flags |= ibverbs.SendInline
		}
	}
	c.send.Reset()
	c.posted(id, c.send.WriteImm(id, to, uint32(p.Word), flags, segments...))
}

// posted posts c.send, unless err is the error of filling it.
func (c *Conn) posted(id uint64, err error) {
	if err == nil {
		_, err = c.qp.PostSend(c.send)
	}
	if err != nil {
		c.fail(failure(err))
		return
	}
	if id != 0 {
		c.inFlight++
	}
}

// fail ends the connection, unless it has ended. The caller holds c.mu.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.wakeAll() // not only the holder of the pump calls this, and the holder may wait for this connection
}
