// SPDX-License-Identifier: Apache-2.0

package netpoll

import (
	"context"
	"errors"
	"os"
)

// ContextError returns the cause of the end of ctx, which must be done.
func ContextError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == nil { // a foreign Context
		cause = err
	}
	if errors.Is(cause, err) && !errors.Is(err, context.DeadlineExceeded) {
		return cause
	}
	return &endedError{err: err, cause: cause}
}

// endedError reports the end of a context that has its own cause or that ended
// by its deadline.
type endedError struct {
	err   error // what the context's Err returned
	cause error // err itself if the context was given no cause
}

func (e *endedError) Error() string {
	if errors.Is(e.cause, e.err) {
		return e.cause.Error()
	}
	return e.err.Error() + ": " + e.cause.Error()
}

// Timeout reports a deadline to users of net.Error, as in package net.
func (e *endedError) Timeout() bool { return errors.Is(e.err, context.DeadlineExceeded) }

// Unwrap adds os.ErrDeadlineExceeded after a deadline, as the standard
// library's descriptors return it.
func (e *endedError) Unwrap() []error {
	errs := []error{e.err, e.cause}
	if e.Timeout() {
		errs = append(errs, os.ErrDeadlineExceeded)
	}
	return errs
}
