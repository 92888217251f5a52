// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"io"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

var _ syscall.Conn = (*Conn)(nil)

// SyscallConn returns a connection for looks at what Read would return, as pools of clients take them before they use
// an idle connection: those of go-redis and go-sql-driver/mysql, for example. A connection over RDMA has no descriptor of its own.
// RawConn.Read lends its function one that reads as the connection would: there is an error matching syscall.EAGAIN while nothing
// has arrived, the bytes that have arrived, up to 4096 of them, and the end of file. What the function reads is read from the
// connection, and what it only peeks at with MSG_PEEK is not. The descriptor is closed when the function returns, nothing can be
// written to it, and it has no options of the connection.
//
// RawConn.Write and RawConn.Control fail with an error matching errors.ErrUnsupported, without calling their function.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if err := c.open("raw-control"); err != nil {
		return nil, err
	}
	return rawConn{c}, nil
}

// A rawConn is what SyscallConn returns.
type rawConn struct{ c *Conn }

// maxLook is the most bytes that a function of RawConn.Read is shown.
const maxLook = 4096

var errNoDescriptor = cerr.Argument("", "", cerr.InvalidAs(errors.ErrUnsupported, "a connection over RDMA has no descriptor"))

// Control fails: options of a socket mean nothing to the connection, and credentials would be this process's.
func (r rawConn) Control(func(fd uintptr)) error { return r.c.opError("raw-control", errNoDescriptor) }

// Write fails: what went to another descriptor would be lost.
func (r rawConn) Write(func(fd uintptr) (done bool)) error {
	return r.c.opError("raw-write", errNoDescriptor)
}

// Read calls f with a descriptor that reads as the connection, and waits for more and calls f again while it returns false.
func (r rawConn) Read(f func(fd uintptr) (done bool)) error {
	if f == nil {
		return r.c.opError("raw-read", cerr.Invalid("the function is nil"))
	}
	if err := r.read(f); err != nil {
		return r.c.opError("raw-read", err)
	}
	return nil
}

func (r rawConn) read(f func(fd uintptr) (done bool)) error {
	c := r.c
	if err := c.beginRead(); err != nil {
		return err
	}
	defer c.reader.end()
	for {
		bytes, rest, end, err := c.look()
		if err != nil {
			return err
		}
		used, done, err := show(bytes, end, f)
		if used > 0 {
			c.consume(used)
		}
		switch {
		case done || err != nil:
			return err
		case end:
			return io.EOF // there will not be more
		}
		want := len(bytes) - used + 1
		if used == 0 { // f waits for more than it knows
			want += rest
		}
		if _, _, _, err := c.next(want); err != nil && err != io.EOF {
			return err
		}
	}
}

// look returns what Read would return now: bytes that have arrived, how many more there are, and whether the end of the file
// follows the bytes. The caller has the reader.
func (c *Conn) look() (bytes []byte, rest int, end bool, err error) {
	c.pump.poll()
	c.mu.Lock()
	isOver := c.isOver
	c.mu.Unlock()
	if isOver {
		c.pump.takeAll() // and what it is over for
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readClosed {
		return nil, 0, true, nil
	}
	n := min(c.state.Unread(), maxLook)
	rest = c.state.Unread() - n
	if n > 0 {
		offset, first := c.state.Next()
		bytes = append(bytes, c.received[offset:offset+min(first, n)]...)
		bytes = append(bytes, c.received[:n-len(bytes)]...)
	}
	end = c.state.Ended() && !errors.Is(c.err, protocol.ErrViolation) && rest == 0
	if n == 0 && !end {
		err = c.err
	}
	return bytes, rest, end, err
}
