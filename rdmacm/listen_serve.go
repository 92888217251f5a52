package rdmacm

import (
	"context"
	"sync"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Serve calls handle with each request, in a goroutine of its own, until ctx
// ends, and returns when all of these have returned: nil then, for that is how a
// server ends. A request that handle neither accepts nor rejects is rejected.
// ListenConfig.MaxServed bounds how many there are at once.
//
// Requests that come after that wait, until Close of the listener rejects them.
//
// If no more requests can be accepted before, because the device was removed or
// the listener closed, Serve ends the context that handle has, and returns why.
func (ln *Listener) Serve(ctx context.Context, handle func(ctx context.Context, req *Request)) error {
	if err := ln.check(); err != nil {
		return err
	}
	switch {
	case ctx == nil:
		return cerr.Nil("Listener.Serve", "ctx")
	case handle == nil:
		return cerr.Nil("Listener.Serve", "handle")
	}
	inner, cancel := context.WithCancel(ctx)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	for {
		req, err := ln.acceptServed(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		handlers.Go(func() {
			defer ln.served()
			defer func() {
				if req.answer("Listener.Serve") == nil {
					_ = req.drop() // it is over whatever becomes of it
				}
			}()
			handle(inner, req)
		})
	}
}

// acceptServed is Accept within ListenConfig.MaxServed. The request counts until
// served.
func (ln *Listener) acceptServed(ctx context.Context) (*Request, error) {
	if ln.serving != nil {
		select {
		case ln.serving <- struct{}{}:
		case <-ln.closed:
			return nil, ln.err()
		case <-ctx.Done():
			return nil, contextError(ctx)
		}
	}
	req, err := ln.Accept(ctx)
	if err != nil {
		ln.served()
	}
	return req, err
}

func (ln *Listener) served() {
	if ln.serving != nil {
		<-ln.serving
	}
}
