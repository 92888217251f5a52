// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"bufio"
	"errors"
	"io"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// Read reads up to len(b) bytes that have arrived. It blocks until there is at
// least one. It returns io.EOF after the peer has closed its end and all data
// was read.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.read(b)
	if err != nil {
		return n, c.readError(err)
	}
	return n, nil
}

// readError returns the error of a call that reads.
func (c *Conn) readError(err error) error {
	if c == nil {
		return err
	}
	return c.opError("read", err)
}

// read does the work of Read.
func (c *Conn) read(b []byte) (int, error) {
	if err := c.beginRead(); err != nil || len(b) == 0 {
		if err == nil {
			c.reader.end()
		}
		return 0, err
	}
	defer c.reader.end()
	offset, n, wrapped, err := c.next(1)
	if err != nil {
		return 0, err
	}
	n = copy(b, c.received[offset:offset+n])
	n += copy(b[n:], c.received[:wrapped])
	c.consume(n)
	return n, nil
}

// beginRead makes the caller the user of the reading direction, until
// c.reader.end.
func (c *Conn) beginRead() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.begin(&c.reader)
}

// next waits until n bytes can be read. It returns all unread bytes as two
// parts of the receive buffer: first bytes at offset, and wrapped bytes at the
// start. If fewer than n bytes will come, err is the reason.
func (c *Conn) next(n int) (offset, first, wrapped int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.state.Unread() < n && err == nil || c.readClosed {
		switch {
		case c.readClosed:
			return 0, 0, 0, io.EOF
		case c.state.Ended() && !errors.Is(c.err, protocol.ErrViolation):
			err = io.EOF
		case c.err != nil:
			err = c.err
		default:
			err = c.wait(&c.reader)
		}
	}
	offset, first = c.state.Next()
	return offset, first, c.state.Unread() - first, err
}

// consume makes the space of n unread bytes free.
func (c *Conn) consume(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state.Consume(n)
	c.post(c.state.Update())
}

// WriteTo writes arriving data to w until the end of file. w.Write gets the
// memory to which the peer has written, which it must not keep. Reads on c wait
// until WriteTo returns. io.Copy uses WriteTo.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	if w == nil {
		return 0, cerr.Nil("Conn.WriteTo", "w")
	}
	if err := c.beginRead(); err != nil {
		return 0, c.readError(err)
	}
	defer c.reader.end()
	c.lent = true
	var total int64
	for {
		offset, n, _, err := c.next(1)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, c.readError(err)
		}
		written, err := w.Write(c.received[offset : offset+n : offset+n])
		written = min(max(written, 0), n)
		c.consume(written)
		total += int64(written)
		if err == nil && written < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// Peek returns the next n bytes, which remain unread. It blocks until they have
// arrived. They are valid until the next call that reads. If fewer than n bytes
// will come, Peek returns these, and the reason: io.EOF or another error. n is
// at most half of Config.ReadBuffer; otherwise Peek fails with
// bufio.ErrBufferFull.
//
// The bytes are in memory to which the peer can write. A peer that breaks the
// protocol can change them after the program has checked them.
func (c *Conn) Peek(n int) ([]byte, error) {
	if n < 0 {
		return nil, bufio.ErrNegativeCount
	}
	if err := c.beginRead(); err != nil {
		return nil, c.readError(err)
	}
	defer c.reader.end()
	if n > len(c.received)/2 {
		return nil, bufio.ErrBufferFull
	}
	offset, first, wrapped, err := c.next(n)
	n = min(n, first+wrapped)
	if n <= first {
		c.lent = true
		return c.received[offset : offset+n : offset+n], c.readError(err)
	}
	c.scratch = append(c.scratch[:0], c.received[offset:offset+first]...)
	c.scratch = append(c.scratch, c.received[:n-first]...)
	return c.scratch, c.readError(err)
}

// Discard skips the next n bytes. It blocks until they have arrived. It returns
// the number of skipped bytes, and an error if that is less than n.
func (c *Conn) Discard(n int) (int, error) {
	if n < 0 {
		return 0, bufio.ErrNegativeCount
	}
	if err := c.beginRead(); err != nil {
		return 0, c.readError(err)
	}
	defer c.reader.end()
	skipped := 0
	for skipped < n {
		_, first, wrapped, err := c.next(1)
		if err != nil {
			return skipped, c.readError(err)
		}
		k := min(n-skipped, first+wrapped)
		c.consume(k)
		skipped += k
	}
	return skipped, nil
}

// Buffered returns the number of bytes that can be read without blocking.
func (c *Conn) Buffered() int {
	if c.open("read") != nil {
		return 0
	}
	c.pump.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readClosed {
		return 0
	}
	return c.state.Unread()
}
