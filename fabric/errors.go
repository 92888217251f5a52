// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"errors"
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// ErrNoAnswer is matched by the error of a request that was not answered in
// time, even when it was sent again.
var ErrNoAnswer = errors.New("no answer")

// Error reports a request that failed.
type Error struct {
	Op      string  // what was asked for, such as NodeInfo
	Address Address // destination of the request
	Port    int     // port that the request asked for; 0 if it was port 0 or no port
	Err     error   // ErrNoAnswer, a Status, the context's error, or an error of the local port
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

// refuse returns an error for a request with an invalid argument, which is not
// sent.
func (c *Client) refuse(op string, to Address, format string, args ...any) error {
	return &Error{Op: op, Address: to, Err: cerr.Invalid(format, args...)}
}

// portError is an error of the local port. It ends all requests.
type portError struct{ err error }

func (e *portError) Error() string { return e.err.Error() }

// Unwrap returns the error.
func (e *portError) Unwrap() error { return e.err }
