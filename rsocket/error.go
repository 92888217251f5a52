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

// Errors that are the same for every connection.
var (
	errReset      = fmt.Errorf("the peer has closed the connection: %w", syscall.ECONNRESET)
	errNotClosed  = fmt.Errorf("the peer has ended without closing the connection: %w", syscall.ECONNRESET)
	errWriteEnded = fmt.Errorf("this end was closed for writing: %w", syscall.EPIPE)
)

// opError returns the error of the operation op on the connection. It returns
// io.EOF unchanged.
func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: timed(err)}
}

// without removes the operation and the address at the start of an error of
// rdmacm, since the net.OpError around it has both.
func without(prefix string, err error) error {
	if cause := errors.Unwrap(err); cause != nil && err.Error() == prefix+cause.Error() {
		return cause
	}
	return err
}

// also joins err with other, an error that followed from err. other may be nil.
func also(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}

// timed wraps an error of a timeout, so that Timeout of a net.OpError around it
// returns true.
func timed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) && err != os.ErrDeadlineExceeded || errors.Is(err, syscall.ETIMEDOUT) {
		return &timeout{err}
	}
	return err
}

// timeout is an error whose method Timeout returns true.
type timeout struct{ error }

// Unwrap returns the wrapped error.
func (e *timeout) Unwrap() error { return e.error }

// Timeout returns true.
func (*timeout) Timeout() bool { return true }

// Temporary returns true, as other timeouts do.
func (*timeout) Temporary() bool { return true }

// failure returns the error of a connection, one of whose work requests has
// failed with err.
func failure(err error) error {
	if errors.Is(err, ibverbs.WCRetryExceeded) {
		return fmt.Errorf("the peer's device does not answer: %w: %w", syscall.ETIMEDOUT, err)
	}
	return fmt.Errorf("the connection has failed: %w: %w", syscall.ECONNRESET, err)
}

// endedBy returns the error of a connection that rdmacm has ended because of
// cause, and whose end the peer's program did not announce.
func endedBy(cause error) error {
	if errors.Is(cause, rdmacm.ErrBacklogFull) {
		return fmt.Errorf("the listener ended the handshake, which took too long while other requests waited: %w: %w",
			rdmacm.ErrBacklogFull, syscall.ECONNRESET)
	}
	// The peer's system rejects the connection if the peer ends the handshake
	// before it learns that this end has completed it. The peer's program has
	// not accepted the connection.
	if errors.Is(cause, syscall.ECONNREFUSED) {
		return fmt.Errorf("the listener ended the handshake before the last message of this end arrived: %w", syscall.ECONNRESET)
	}
	if errors.Is(cause, syscall.ECONNRESET) || errors.Is(cause, os.ErrClosed) {
		return errNotClosed
	}
	if _, failed := errors.AsType[*rdmacm.QPError](cause); failed {
		return failure(cause)
	}
	return cause
}
