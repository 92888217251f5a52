// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
)

// contextError returns the cause of the end of ctx, which must be done.
func contextError(ctx context.Context) error { return netpoll.ContextError(ctx) }

// ended returns an error if ctx is nil or done.
func ended(op string, ctx context.Context) error {
	switch {
	case ctx == nil:
		return cerr.Nil(op, "ctx")
	case ctx.Err() != nil:
		return contextError(ctx)
	}
	return nil
}
