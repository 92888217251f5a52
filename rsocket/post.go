// SPDX-License-Identifier: Apache-2.0

package rsocket

import "github.com/verbena-go/verbena/rsocket/internal/protocol"

// settle posts receives and a control message, as far as they are due. The
// caller holds c.mu.
func (c *Conn) settle() {
	c.postReceives()
	c.post(c.state.Update())
}

// postReceives posts the missing receives. The caller holds c.mu.
func (c *Conn) postReceives() {
	if c.err == nil && !c.isOver {
		c.failIf(c.receives.refill())
	}
}

// post posts the control message p if due is true. The caller holds c.mu.
func (c *Conn) post(p protocol.Post, due bool) {
	switch {
	case !due || c.err != nil || c.isOver:
		return
	case p.HasEntry:
		place := c.control.Sub(p.Slot*protocol.EntryLen, protocol.EntryLen)
		copy(place.Bytes(), p.Entry[:])
		c.segments[0] = place
		c.failIf(c.postMessage(uint64(p.ID), p, c.segments[:1]))
	case p.Word == protocol.KeepAlive:
		c.failIf(c.postProbe(uint64(p.ID)))
	default:
		c.failIf(c.postMessage(uint64(p.ID), p, nil))
	}
}

// postData posts a request with data in the send buffer. The caller holds c.mu.
func (c *Conn) postData(p protocol.Post) {
	n := min(p.Len, c.sendBuffer.Len()-p.Offset)
	c.segments[0] = c.sendBuffer.Sub(p.Offset, n)
	segments := c.segments[:1]
	if n < p.Len {
		c.segments[1] = c.sendBuffer.Sub(0, p.Len-n)
		segments = c.segments[:2]
	}
	if p.Direct {
		c.failIf(c.postDirect(uint64(p.ID), p, segments))
		return
	}
	c.failIf(c.postMessage(uint64(p.ID), p, segments))
}

// postChunk posts a message with the next n bytes of a chunk. The caller holds
// c.mu.
func (c *Conn) postChunk(p protocol.Post, from *chunk, n int) {
	c.segments[0] = from.segment.Sub(from.sent, n)
	c.failIf(c.postMessage(uint64(p.ID)|uint64(from.index+1)<<chunkShift, p, c.segments[:1]))
}

// failIf fails the connection if err, an error of posting, is not nil.
func (c *Conn) failIf(err error) {
	if err != nil {
		c.fail(failure(err))
	}
}
