// SPDX-License-Identifier: Apache-2.0

package netpoll

import (
	"context"
	"errors"
	"os"
)

// ContextError returns the error for the end of ctx, which must have ended. It
// matches ctx.Err() and context.Cause(ctx), and after a deadline also
// os.ErrDeadlineExceeded.
func ContextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil { // a Context of another package may have ended without a cause
		cause = err
	}
	if errors.Is(cause, err) && !errors.Is(err, context.DeadlineExceeded) {
		return cause
	}
	return &endedError{err: err, cause: cause}
}

// endedError is the error for the end of a context by its deadline or with a
// cause of its own.
type endedError struct {
	err   error // result of the context's Err
	cause error // cause of the context's end; err if there is none
}

func (e *endedError) Error() string {
	if errors.Is(e.cause, e.err) {
		return e.cause.Error()
	}
	return e.err.Error() + ": " + e.cause.Error()
}

// Timeout reports whether the context has ended by its deadline, for users of
// net.Error.
func (e *endedError) Timeout() bool { return errors.Is(e.err, context.DeadlineExceeded) }

// Unwrap returns the context's error and cause, and after a deadline also
// os.ErrDeadlineExceeded, which descriptors of the standard library return.
func (e *endedError) Unwrap() []error {
	errs := []error{e.err, e.cause}
	if e.Timeout() {
		errs = append(errs, os.ErrDeadlineExceeded)
	}
	return errs
}
