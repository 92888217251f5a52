// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
)

// Errors of requests and peers, for errors.Is.
var (
	// ErrSessionEnded reports that a session with the peer has ended: the
	// peer's program has restarted, has closed its Peer, or was away for longer
	// than Config.RetryTimeout. The error also says what this end saw of that.
	// Regions that Peer.Region returned before are of no use any more; ask for
	// them again.
	ErrSessionEnded = errors.New("transfer: the session with the peer has ended; its regions must be looked up again")
	// ErrWithdrawn reports that the peer has closed the region.
	ErrWithdrawn = errors.New("transfer: the peer has closed the region")
	// ErrCanceled reports that Batch.Cancel came before the request, or the
	// batch's notification, was done.
	ErrCanceled = errors.New("transfer: canceled")
	// ErrRefused reports that the listener's Authenticate or the dialer's
	// Verify refused the peer. It matches syscall.EACCES.
	ErrRefused error = refused{}
)

type refused struct{}

func (refused) Error() string { return "transfer: refused" }
func (refused) Unwrap() error { return syscall.EACCES }

// errProtocol is what errors match when the peer broke the protocol.
var errProtocol error = syscall.EPROTO

// RequestError is the error of a request of a batch.
type RequestError struct {
	Index  int    // index of the request in the batch
	Region string // name of the peer's region
	Write  bool   // whether the request is a write
	Err    error  // the cause; see Unwrap
}

// Error names the request, the region and the cause.
func (e *RequestError) Error() string {
	verb := "read from"
	if e.Write {
		verb = "write to"
	}
	return fmt.Sprintf("transfer: request %d of the batch, a %s the peer's region %q: %v", e.Index, verb, e.Region, e.Err)
}

// Unwrap returns the cause: ErrSessionEnded, ErrWithdrawn, ErrCanceled, an
// error matching os.ErrClosed if the Peer was closed, one matching
// syscall.ETIMEDOUT if no connection could carry the request in
// Config.RetryTimeout, or an error with an *ibverbs.WCError.
func (e *RequestError) Unwrap() error { return e.Err }

// PendingError reports that the wait for a batch ended before the batch. The
// devices may still read or write the memory of its requests at both ends, so
// leave it alone until Batch.Wait returns anything but a *PendingError.
type PendingError struct {
	Err error // the context's error
}

// Error reports that the batch goes on, and why the wait ended.
func (e *PendingError) Error() string { return "transfer: the batch goes on: " + e.Err.Error() }

// Unwrap returns the reason why the wait ended.
func (e *PendingError) Unwrap() error { return e.Err }

// timeout is the error of a request that no connection could carry in time.
type timeoutError struct{ last error }

func (e timeoutError) Error() string {
	const text = "no connection could carry it in Config.RetryTimeout"
	if e.last == nil {
		return text
	}
	return text + ": " + e.last.Error()
}

func (e timeoutError) Unwrap() []error { return []error{syscall.ETIMEDOUT, e.last} }

// permanent reports whether a failed work request would fail again over any
// connection.
func permanent(err error) bool {
	var wc *ibverbs.WCError
	if !errors.As(err, &wc) {
		return false
	}
	switch wc.Status {
	case ibverbs.WCRemoteAccess, ibverbs.WCRemoteInvalidRequest, ibverbs.WCRemoteOperation, ibverbs.WCLocalProtection,
		ibverbs.WCLocalLength, ibverbs.WCLocalQPOperation, ibverbs.WCLocalAccess:
		return true
	}
	return false
}
