// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"io"
	"net"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// Write writes b. It returns after all of b was copied and posted to the
// device, so it blocks while the peer's buffer is full. The peer's program may
// not have read the data when Write returns.
func (c *Conn) Write(b []byte) (int, error) {
	one := [1][]byte{b}
	v := net.Buffers(one[:])
	n, err := c.write(&v, len(b))
	if err != nil {
		return n, c.writeError(err)
	}
	return n, nil
}

// WriteBuffers writes the buffers one after the other, in as few messages as
// possible. Like net.Buffers.WriteTo, it removes from *v what was written.
func (c *Conn) WriteBuffers(v *net.Buffers) (int64, error) {
	if v == nil {
		return 0, cerr.Nil("Conn.WriteBuffers", "v")
	}
	total := 0
	for _, b := range *v {
		total += len(b)
	}
	n, err := c.write(v, total)
	if err != nil {
		return int64(n), c.writeError(err)
	}
	drop(v, 0)
	return int64(n), nil
}

// writeError returns the error of a call that writes.
func (c *Conn) writeError(err error) error {
	if c == nil {
		return err
	}
	return c.opError("write", err)
}

// beginWrite makes the caller the user of the writing direction, until
// c.writer.end.
func (c *Conn) beginWrite() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.begin(&c.writer)
}

// write writes total bytes from the buffers, and removes from the buffers what
// was written. It returns the number of bytes.
func (c *Conn) write(v *net.Buffers, total int) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.writer.end()
	return c.writeNext(v, total, true)
}

// writeNext does the work of write for a caller that uses the writing
// direction. If wait is false, it returns errWouldBlock instead of waiting.
func (c *Conn) writeNext(v *net.Buffers, total int, wait bool) (int, error) {
	if total == 0 {
		return 0, c.canWrite()
	}
	if err := c.announce(wait); err != nil {
		return 0, err
	}
	done := 0
	for step := protocol.FirstData; done < total; step = min(2*step, protocol.LongData) {
		n, offset, err := c.room(min(total-done, step), false, wait)
		if err != nil {
			return done, err
		}
		c.fill(offset, n, v)
		if err := c.sendData(n, nil); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// fill copies n bytes of the buffers to the offset of the send buffer, whose
// end its start follows, and removes them from *v.
func (c *Conn) fill(offset, n int, v *net.Buffers) {
	for copied := 0; copied < n; {
		at := (offset + copied) % len(c.sending)
		k := copy(c.sending[at:min(len(c.sending), at+n-copied)], (*v)[0])
		copied += k
		drop(v, k)
	}
}

// drop removes the first n bytes from the first buffer. After that, it removes
// all empty buffers at the front.
func drop(v *net.Buffers, n int) {
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
	for len(*v) > 0 && len((*v)[0]) == 0 {
		(*v)[0] = nil
		*v = (*v)[1:]
	}
}

// canWrite returns an error if the connection cannot be written to.
func (c *Conn) canWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mayWrite()
}

// mayWrite does the work of canWrite. The caller holds c.mu.
func (c *Conn) mayWrite() error {
	switch {
	case fired(c.closed):
		return net.ErrClosed
	case c.writeClosed:
		return errWriteEnded
	case c.err != nil:
		return c.err
	case c.state.Disconnected():
		return errReset
	}
	return nil
}

// room waits until some of the next n bytes may be sent in one message, and
// returns how many. If outside is false, it also returns their offset in the
// send buffer. If wait is false, it returns errWouldBlock instead of waiting.
func (c *Conn) room(n int, outside, wait bool) (room, offset int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if err := c.mayWrite(); err != nil {
			return 0, 0, err
		}
		if c.writer.deadline.hasPassed() {
			return 0, 0, os.ErrDeadlineExceeded
		}
		if outside {
			room = c.state.RoomOutside(n)
		} else {
			room = c.state.Room(n)
		}
		if room > 0 && !c.isOver {
			if outside {
				return room, 0, nil
			}
			c.filling = true
			return room, c.state.Offset(), c.takeSendBuffer()
		}
		if !wait {
			return 0, 0, errWouldBlock
		}
		if err := c.wait(&c.writer); err != nil {
			return 0, 0, err
		}
	}
}

// sendData sends n bytes in one message, where n is at most what room returned.
// They are the next bytes of the chunk from, or of the send buffer if from is
// nil.
func (c *Conn) sendData(n int, from *chunk) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.filled()
	if err := c.mayWrite(); err != nil {
		return err
	}
	if from == nil {
		c.postData(c.state.Send(n))
	} else {
		c.direct.pending[from.index]++
		c.postChunk(c.state.SendOutside(n), from, n)
	}
	return c.err
}

// filled records that no call copies to the send buffer any more. The caller
// holds c.mu.
func (c *Conn) filled() {
	c.filling = false
	if c.released {
		c.giveBack()
	}
}

// The lower bits of a send request's ID are the protocol's ID. The upper bits
// are the number of the chunk, counted from 1, or 0 if there is no chunk.
const (
	chunkShift = protocol.IDBits
	idMask     = 1<<chunkShift - 1
)

// direct is memory for ReadFrom, which reads into it and sends from it.
type direct struct {
	lock   chan struct{} // full while a ReadFrom uses the memory
	memory *ibverbs.MR

	// Guarded by the connection's mu.
	pending [chunks]int // number of requests in flight that send from each chunk
	slab    *slab       // the memory, if it belongs to a pool; otherwise nil
	inUse   bool        // whether a ReadFrom uses the memory
}

const (
	chunks   = 2
	chunkLen = protocol.LongData
)

// chunk is a part of the memory of direct.
type chunk struct {
	index   int
	segment ibverbs.Segment
	sent    int // number of bytes that were sent
}

// ReadFrom reads from r until its end, and writes what it has read. It reads
// directly into memory from which the device sends. io.Copy uses ReadFrom.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	if r == nil {
		return 0, cerr.Nil("Conn.ReadFrom", "r")
	}
	if err := c.open("write"); err != nil {
		return 0, err
	}
	select {
	case c.direct.lock <- struct{}{}:
		defer func() { <-c.direct.lock }()
	default: // another ReadFrom owns the memory
		return io.Copy(struct{ io.Writer }{c}, r)
	}
	if err := c.beginDirect(); err != nil {
		return 0, c.writeError(err)
	}
	defer c.endDirect()
	var total int64
	for i := 0; ; i = (i + 1) % chunks {
		if err := c.waitForChunk(i); err != nil {
			return total, c.writeError(err)
		}
		segment := c.direct.memory.Sub(i*chunkLen, chunkLen)
		memory := segment.Bytes()
		if memory == nil { // Close has closed the memory region
			return total, c.writeError(net.ErrClosed)
		}
		n, readErr := r.Read(memory)
		if n < 0 || n > chunkLen {
			return total, errBadRead
		}
		sent, err := c.sendChunk(&chunk{index: i, segment: segment.Sub(0, n)})
		total += int64(sent)
		switch {
		case err != nil:
			return total, c.writeError(err)
		case readErr == io.EOF:
			return total, nil
		case readErr != nil:
			return total, readErr
		}
	}
}

// beginDirect allocates the memory for ReadFrom. ReadFrom must call endDirect
// when it ends.
func (c *Conn) beginDirect() (err error) {
	d := &c.direct
	if c.part == nil {
		if d.memory == nil {
			d.memory, err = c.rdma.Alloc(chunks*chunkLen, 0)
		}
		if fired(c.closed) { // Alloc fails with another error after Close
			err = net.ErrClosed
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.released:
		return net.ErrClosed
	case d.slab == nil:
		if d.slab, err = c.part.memory.take(chunks * chunkLen); err != nil {
			return err
		}
		d.memory = d.slab.region
	}
	d.inUse = true
	return nil
}

// endDirect returns the memory to the pool, if there is one and no request uses
// the memory.
func (c *Conn) endDirect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.direct.inUse = false
	c.giveBack()
}

var errBadRead = errors.New("rsocket: the reader returned an impossible count from Read")

// waitForChunk waits until no request sends from chunk i.
func (c *Conn) waitForChunk(i int) error {
	if err := c.beginWrite(); err != nil {
		return err
	}
	defer c.writer.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.direct.pending[i] > 0 {
		if err := c.mayWrite(); err != nil {
			return err
		}
		if err := c.wait(&c.writer); err != nil {
			return err
		}
	}
	return c.mayWrite()
}

// sendChunk sends all bytes of a chunk, and returns the number of bytes that
// were sent.
func (c *Conn) sendChunk(from *chunk) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.writer.end()
	for from.sent < from.segment.Len() {
		n, _, err := c.room(from.segment.Len()-from.sent, true, true)
		if err != nil {
			return from.sent, err
		}
		if err := c.sendData(n, from); err != nil {
			return from.sent, err
		}
		from.sent += n
	}
	return from.sent, nil
}
