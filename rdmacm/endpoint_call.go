package rdmacm

import (
	"context"
	"fmt"

	"github.com/verbena-go/verbena/internal/cerr"
)

// ready returns nil, or why no call can begin that waits.
func (ep *Endpoint) ready(ctx context.Context, op string) error {
	if err := ep.usable(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return cerr.Nil(op, "ctx")
	case ctx.Err() != nil:
		return ep.failure(op, contextError(ctx))
	}
	return nil
}

// do starts something and waits for the event that answers it. An event that
// reports a failure is returned as an error.
func (ep *Endpoint) do(ctx context.Context, op string, start func() error, answers func(*Event) bool) (*Event, error) {
	c, err := ep.begin(ctx, op, start, answers)
	if err != nil {
		return nil, err
	}
	return ep.finish(ctx, op, c)
}

// begin is the first half of do.
func (ep *Endpoint) begin(ctx context.Context, op string, start func() error, answers func(*Event) bool) (*call, error) {
	if err := ep.ready(ctx, op); err != nil {
		return nil, err
	}
	c := ep.inbox.expect(answers)
	if err := start(); err != nil {
		ep.inbox.cancel(c)
		return nil, err
	}
	return c, nil
}

// finish is the second half of do.
func (ep *Endpoint) finish(ctx context.Context, op string, c *call) (*Event, error) {
	ev, err := ep.inbox.await(ctx, c)
	if err == nil {
		err = ev.Err()
	}
	if err != nil {
		return nil, ep.failure(op, err)
	}
	return ev, nil
}

// failure names the operation and the endpoint in an error.
func (ep *Endpoint) failure(op string, err error) error {
	return fmt.Errorf("%s (%s): %w", op, ep.id.name(), err)
}
