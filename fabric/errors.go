// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// ErrNoAnswer is in the error of a request that was not answered in time,
// however often it was sent.
var ErrNoAnswer = errors.New("no answer")

// Error reports a request that failed.
type Error struct {
	Op      string  // what was asked for, such as NodeInfo
	Address Address // where the request was sent
	Port    int     // port of the node that the request was about; 0: none, or port 0
	Err     error   // ErrNoAnswer, a Status, the context's error, or one of the local port
}

func (e *Error) Error() string {
	object := e.Address.String()
	if e.Address.lid != 0 {
		object = "LID " + object
	}
	if e.Port != 0 {
		object += fmt.Sprintf(", port %d", e.Port)
	}
	if e.Err == nil { // in an error that a program has made
		return fmt.Sprintf("%s (%s)", e.Op, object)
	}
	return fmt.Sprintf("%s (%s): %v", e.Op, object, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// refuse returns the error of a request that is not sent.
func (c *Client) refuse(op string, to Address, format string, args ...any) error {
	return &Error{Op: op, Address: to, Err: cerr.Invalid(format, args...)}
}

// portError is an error of the local port, which concerns all requests.
type portError struct{ err error }

func (e *portError) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *portError) Unwrap() error { return e.err }
