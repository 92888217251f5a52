// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// The causes that are the same for every connection.
var (
	errReset      = fmt.Errorf("the peer has closed the connection: %w", syscall.ECONNRESET)
	errNotClosed  = fmt.Errorf("the peer has ended without closing the connection: %w", syscall.ECONNRESET)
	errWriteEnded = fmt.Errorf("this end was closed for writing: %w", syscall.EPIPE)
)

// opError returns the error of an operation of the connection. io.EOF stays as it is.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: timed(err)}
}

// without returns an error of rdmacm without the operation and the address that it begins with, which a net.OpError has, too.
func without(prefix string, err error) error {
	if cause := errors.Unwrap(err); cause != nil && err.Error() == prefix+cause.Error() {
		return cause
	}
	return err
}

// also returns an error, joined with what has failed because of it, if anything.
func also(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}

// timed returns an error of which a net.OpError knows whether it is a timeout.
func timed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) && err != os.ErrDeadlineExceeded || errors.Is(err, syscall.ETIMEDOUT) {
		return &timeout{err}
	}
	return err
}

// timeout is an error for which Timeout returns true.
type timeout struct{ error }

// Unwrap returns the error itself.
func (e *timeout) Unwrap() error { return e.error }

// Timeout returns true.
func (*timeout) Timeout() bool { return true }

// Temporary returns true, as for other timeouts.
func (*timeout) Temporary() bool { return true }

// failure returns the error of a work request that has failed.
func failure(err error) error {
	if errors.Is(err, ibverbs.WCRetryExceeded) {
		return fmt.Errorf("the peer's device does not answer: %w: %w", syscall.ETIMEDOUT, err)
	}
	return fmt.Errorf("the connection has failed: %w: %w", syscall.ECONNRESET, err)
}

// ended returns the error for the end of the connection as rdmacm reports it, without a word of the peer's program.
func endedBy(cause error) error {
	if errors.Is(cause, rdmacm.ErrBacklogFull) {
		return fmt.Errorf("the peer has given the connection's place to another, as the end of its handshake came late: %w: %w",
			rdmacm.ErrBacklogFull, syscall.ECONNRESET)
	}
	// A peer that closes a connection before it has heard that it is up rejects it.
	if errors.Is(cause, syscall.ECONNRESET) || errors.Is(cause, os.ErrClosed) || errors.Is(cause, syscall.ECONNREFUSED) {
		return errNotClosed
	}
	if _, failed := errors.AsType[*rdmacm.QPError](cause); failed {
		return failure(cause)
	}
	return cause
}
