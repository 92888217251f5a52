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

// SyscallConn returns a raw connection on which a program can check what Read
// would return. Connection pools of client libraries, such as go-redis and
// go-sql-driver/mysql, check idle connections in this way.
//
// A connection over RDMA has no descriptor. RawConn.Read calls its function
// with a descriptor that returns the data that has arrived, up to 4096 bytes,
// and then the end of file if the peer has closed its end, or otherwise EAGAIN.
// Bytes that the function reads are read from the connection; bytes that it
// peeks at with MSG_PEEK are not. The descriptor cannot be written to, and has
// none of the connection's options. It is closed when the function returns.
//
// RawConn.Write and RawConn.Control fail with an error matching
// errors.ErrUnsupported, and do not call their function.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if err := c.open("raw-control"); err != nil {
		return nil, err
	}
	return rawConn{c}, nil
}

// rawConn is the result of SyscallConn.
type rawConn struct{ c *Conn }

// maxLook limits the number of bytes that RawConn.Read shows to its function.
const maxLook = 4096

var errNoDescriptor = cerr.Argument("", "", cerr.InvalidAs(errors.ErrUnsupported, "a connection over RDMA has no descriptor"))

// Control always fails. A socket option would not apply to the connection, and
// a query for the peer's credentials (SO_PEERCRED) would return those of this
// process.
func (r rawConn) Control(func(fd uintptr)) error { return r.c.opError("raw-control", errNoDescriptor) }

// Write always fails, since bytes that were written to another descriptor would
// be lost.
func (r rawConn) Write(func(fd uintptr) (done bool)) error {
	return r.c.opError("raw-write", errNoDescriptor)
}

// Read calls f with a descriptor that returns what Read of the connection would
// return. As long as f returns false, Read waits for more data and calls f
// again.
func (r rawConn) Read(f func(fd uintptr) (done bool)) error {
	if f == nil {
		return r.c.opError("raw-read", cerr.Invalid("f is nil"))
	}
	if err := r.read(f); err != nil {
		return r.c.opError("raw-read", err)
	}
	return nil
}

// read does the work of Read.
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
			return io.EOF // f wants more data, and none will come
		}
		want := len(bytes) - used + 1
		if used == 0 { // f waits for bytes that it has not seen
			want += rest
		}
		if _, _, _, err := c.next(want); err != nil && err != io.EOF {
			return err
		}
	}
}

// look returns what Read would return now: bytes that have arrived, up to
// maxLook; rest, the number of further bytes; and whether the end of file
// follows. The caller has locked c.reader.
func (c *Conn) look() (bytes []byte, rest int, end bool, err error) {
	c.pump.poll()
	c.mu.Lock()
	isOver := c.isOver
	c.mu.Unlock()
	if isOver {
		c.pump.takeAll() // takes the completions from before the end
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
