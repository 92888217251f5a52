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

// Write writes b. It returns when all of b was copied and passed to the device,
// so it blocks while the peer's buffer is full. The peer's program may not have
// read the data when Write returns.
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
// possible. It removes written bytes from *v, as net.Buffers.WriteTo does.
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

func (c *Conn) writeError(err error) error {
	if c == nil {
		return err
	}
	return c.opError("write", err)
}

// beginWrite gives the caller ownership of the direction until c.writer.end.
func (c *Conn) beginWrite() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.begin(&c.writer)
}

// write writes total bytes from the buffers, and removes them from the buffers.
func (c *Conn) write(v *net.Buffers, total int) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.writer.end()
	if total == 0 {
		return 0, c.canWrite()
	}
	done := 0
	for step := protocol.FirstData; done < total; step = min(2*step, protocol.LongData) {
		n, offset, err := c.room(min(total-done, step), false)
		if err != nil {
			return done, err
		}
		for copied := 0; copied < n; { // to the end of the send buffer, then from its start
			at := (offset + copied) % len(c.sending)
			k := copy(c.sending[at:min(len(c.sending), at+n-copied)], (*v)[0])
			copied += k
			drop(v, k)
		}
		if err := c.sendData(n, nil); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// drop removes n bytes from the first buffer, and then leading empty buffers.
func drop(v *net.Buffers, n int) {
	if n > 0 {
		(*v)[0] = (*v)[0][n:]
	}
	for len(*v) > 0 && len((*v)[0]) == 0 {
		(*v)[0] = nil
		*v = (*v)[1:]
	}
}

// canWrite returns an error if writing is impossible.
func (c *Conn) canWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mayWrite()
}

// mayWrite is canWrite for a caller that holds c.mu.
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

// room waits until up to n bytes may be sent in one message. It returns their
// number. Unless outside is true, it also returns their place in the send
// buffer.
func (c *Conn) room(n int, outside bool) (room, offset int, err error) {
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
		if err := c.wait(&c.writer); err != nil {
			return 0, 0, err
		}
	}
}

// sendData sends n bytes, as room returned: those next in the send buffer, or
// those of a chunk.
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

// filled records that no goroutine copies to the send buffer any more. The
// caller holds c.mu.
func (c *Conn) filled() {
	c.filling = false
	if c.released {
		c.giveBack()
	}
}

// The ID of a request is the protocol's ID, and above it the number of the
// chunk, from 1 on.
const (
	chunkShift = protocol.IDBits
	idMask     = 1<<chunkShift - 1
)

// direct is memory that ReadFrom reads into and the device sends from.
type direct struct {
	lock   chan struct{} // full while a ReadFrom owns the memory
	memory *ibverbs.MR

	// Guarded by the connection's mu.
	pending [chunks]int // number of requests in flight of each chunk
	slab    *slab       // the memory, if it is a pool's
	inUse   bool
}

const (
	chunks   = 2
	chunkLen = protocol.LongData
)

// chunk is a part of the memory of direct.
type chunk struct {
	index   int
	segment ibverbs.Segment
	sent    int // in bytes
}

// ReadFrom reads from r until its end, and writes what it reads. It reads
// directly into memory that the device sends from. io.Copy uses it.
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
		if memory == nil { // Close has closed it
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

// beginDirect gets the memory, until endDirect.
func (c *Conn) beginDirect() (err error) {
	d := &c.direct
	if c.part == nil {
		if d.memory == nil {
			d.memory, err = c.rdma.Alloc(chunks*chunkLen, 0)
		}
		if fired(c.closed) { // Alloc fails with another error then
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

// endDirect returns the memory to the pool once no request sends from it.
func (c *Conn) endDirect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.direct.inUse = false
	c.giveBack()
}

var errBadRead = errors.New("rsocket: the reader returned an impossible count from Read")

// waitForChunk waits until the device no longer needs the chunk.
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

// sendChunk sends all of a chunk, and returns the number of bytes sent.
func (c *Conn) sendChunk(from *chunk) (int, error) {
	if err := c.beginWrite(); err != nil {
		return 0, err
	}
	defer c.writer.end()
	for from.sent < from.segment.Len() {
		n, _, err := c.room(from.segment.Len()-from.sent, true)
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
