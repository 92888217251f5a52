package rdmacm

import (
	"context"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/netpoll"
)

// contextError says why ctx, which must be done, has ended.
func contextError(ctx context.Context) error { return netpoll.ContextError(ctx) }

// ended returns nil, or why nothing can begin with ctx, which may be nil.
func ended(op string, ctx context.Context) error {
	switch {
	case ctx == nil:
		return cerr.Nil(op, "ctx")
	case ctx.Err() != nil:
		return contextError(ctx)
	}
	return nil
}
