// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// Watch returns the life of an endpoint's connection: a context that ends when
// the connection has ended, or when ctx ends. Its cause is the error of the
// event that reported the end. Watch takes the endpoint's events until then.
func Watch(ctx context.Context, ep *endpoint.Endpoint) context.Context {
	life, end := context.WithCancelCause(ctx)
	go func() {
		for {
			ev, err := ep.Next(life)
			if err == nil {
				err = Ended(ev)
			}
			if err != nil {
				end(err)
				return
			}
		}
	}()
	return life
}

// Ended returns the error of an event that reports the end of a connection, and
// nil for other events.
func Ended(ev *rdmacm.Event) error {
	switch ev.Type {
	// If the peer gives up while it waits for the last message of the handshake,
	// it rejects a connection that is already up at this end.
	case rdmacm.EventDisconnected, rdmacm.EventDeviceRemoval, rdmacm.EventConnectError, rdmacm.EventRejected:
		return ev.Err()
	}
	return nil
}

// eventTimeout is how long Cause waits for the event that says why requests
// were flushed.
const eventTimeout = 5 * time.Second

// Cause returns why a call has failed with err, of a connection with that life:
// the end of the connection, if err is only a consequence of it. The device
// flushes requests before the program reads the event of the end, so Cause
// waits for the event if a request was flushed.
func Cause(life context.Context, err error) error {
	failed, ok := errors.AsType[*ibverbs.WCError](err)
	switch {
	case err == nil, ok && failed.Status != ibverbs.WCFlushed:
		return err
	case ok:
		select {
		case <-life.Done():
		case <-time.After(eventTimeout):
		}
	}
	return cmp.Or(context.Cause(life), err)
}

// completed waits for a completion of a connection with that life. A completion
// that came before the end of the connection counts, even if the end was heard
// of first.
func completed(life context.Context, completion func(context.Context) (ibverbs.WC, error)) error {
	_, err := completion(life)
	if err != nil && errors.Is(err, context.Canceled) {
		_, err = completion(life)
	}
	return err
}
