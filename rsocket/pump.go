// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// Whoever has to wait tries to get the pump. Who has it takes completions, for everybody, until its own wait is over. The others wait
// for their side's wake, or for the pump.

// background is the context of all waits: CQ.Wake ends them.
var background = context.Background()

// wait waits until something has happened that concerns the side, which the caller has. The caller has locked c.mu, which wait unlocks
// meanwhile.
func (c *Conn) wait(s *side) error {
	c.mu.Unlock()
	defer c.mu.Lock()
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
	case c.pump <- struct{}{}:
		c.lead(s)
		<-c.pump
	}
	return nil
}

// lead takes completions until the side is woken. The caller has the pump.
func (c *Conn) lead(s *side) {
	for !fired(c.closed) && !s.deadline.hasPassed() {
		select {
		case <-s.wake:
			return
		default:
		}
		if c.drained() {
			return
		}
		n, err := c.cq.Wait(background, c.wcs)
		if n > 0 || err != nil {
			c.handle(n, err)
		}
	}
}

// poll takes the completions that are there, unless somebody has the pump.
func (c *Conn) poll() {
	select {
	case c.pump <- struct{}{}:
	default:
		return
	}
	if n, err := c.cq.Poll(c.wcs); n > 0 || err != nil {
		c.handle(n, err)
	}
	<-c.pump
}

// drained reports whether the connection is over below, and then takes everything that has arrived before. The caller has the pump.
func (c *Conn) drained() bool {
	c.mu.Lock()
	isOver := c.isOver
	c.mu.Unlock()
	if !isOver {
		return false
	}
	for {
		n, err := c.cq.Poll(c.wcs)
		if n == 0 {
			break
		}
		c.handle(n, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Disconnected() {
		c.fail(errReset)
	} else {
		c.fail(endedBy(c.over))
	}
	return true
}

// handle takes the first n of c.wcs, and why there are no more. The caller has the pump.
func (c *Conn) handle(n int, err error) {
	c.mu.Lock()
	c.take(n)
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

// receiveID is the ID of all receives. It is none of a request.
const receiveID = 1 << 63

func (c *Conn) take(n int) {
	var flushed error
	for i := range c.wcs[:n] {
		wc := &c.wcs[i]
		switch {
		case wc.Status() == ibverbs.WCFlushed:
			flushed = wc.Err()
		case wc.Status() != ibverbs.WCSuccess:
			if !c.state.Disconnected() { // otherwise the peer need not answer
				c.fail(failure(wc.Err()))
			}
		case wc.ID() == receiveID:
			c.owed++
			c.receive(wc)
		default:
			c.complete(wc.ID())
		}
	}
	if flushed != nil && !c.isOver && !c.state.Disconnected() {
		c.fail(failure(flushed)) // unless something else has failed
	}
	c.settle()
}

// receive takes a message.
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

// complete takes the completion of a request.
func (c *Conn) complete(id uint64) {
	c.state.Complete(protocol.ID(id & idMask))
	if chunk := id >> chunkShift; chunk > 0 {
		c.direct.pending[chunk-1]--
	}
	c.writer.signal()
	c.closer.signal()
}

// settle posts what is due.
func (c *Conn) settle() {
	c.postReceives()
	c.post(c.state.Update())
}

// postReceives posts the receives that are owed.
func (c *Conn) postReceives() {
	for c.owed > 0 && c.err == nil && !c.isOver {
		c.recv.Reset()
		n, err := min(c.owed, recvBatch), error(nil)
		for range n {
			err = c.recv.Recv(receiveID) // it has room, and no segments
		}
		if err == nil {
			_, err = c.qp.PostRecv(c.recv)
		}
		if err != nil {
			c.fail(failure(err))
		}
		c.owed -= n
	}
}

// post posts a request, if there is one. The caller has locked c.mu.
func (c *Conn) post(p protocol.Post, due bool) {
	switch {
	case !due || c.err != nil || c.isOver:
		return
	case p.HasEntry:
		place := c.control.Sub(p.Slot*protocol.EntryLen, protocol.EntryLen)
		copy(place.Bytes(), p.Entry[:])
		c.segments[0] = place
		c.postMessage(uint64(p.ID()), p, c.segments[:1])
	case p.Word == protocol.KeepAlive:
		c.send.Reset()
		c.posted(c.send.Write(uint64(p.ID()), ibverbs.RemoteBuffer{}, ibverbs.SendSignaled))
	default:
		c.postMessage(uint64(p.ID()), p, nil)
	}
}

// postData posts data that is in the send buffer.
func (c *Conn) postData(p protocol.Post) {
	n := min(p.Len, c.sendBuffer.Len()-p.Offset)
	c.segments[0] = c.sendBuffer.Sub(p.Offset, n)
	segments := c.segments[:1]
	if n < p.Len {
		c.segments[1] = c.sendBuffer.Sub(0, p.Len-n)
		segments = c.segments[:2]
	}
	c.postMessage(uint64(p.ID()), p, segments)
}

// postMessage posts a write of the segments with the word.
func (c *Conn) postMessage(id uint64, p protocol.Post, segments []ibverbs.Segment) {
	var to ibverbs.RemoteBuffer
	flags, n := ibverbs.SendSignaled, 0
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
	c.posted(c.send.WriteImm(id, to, uint32(p.Word), flags, segments...))
}

// posted posts c.send, unless filling it has failed.
func (c *Conn) posted(err error) {
	if err == nil {
		_, err = c.qp.PostSend(c.send)
	}
	if err != nil {
		c.fail(failure(err))
	}
}

// fail ends the connection, unless it has ended. The caller has locked c.mu.
func (c *Conn) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.reader.signal()
	c.writer.signal()
	c.closer.signal()
}
