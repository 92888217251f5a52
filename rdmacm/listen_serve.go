package rdmacm

import (
	"context"
	"sync"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Serve calls handle with each request, in a goroutine of its own, until ctx
// ends, and returns when all of these have returned: nil then, for that is how a
// server ends. A request that handle neither accepts nor rejects is rejected.
//
// If no more requests can be accepted before, because the device was removed or
// the listener closed, Serve ends the context that handle has, and returns why.
func (ln *Listener) Serve(ctx context.Context, handle func(ctx context.Context, req *Request)) error {
	switch {
	case ctx == nil:
		return cerr.Nil("Serve", "ctx")
	case handle == nil:
		return cerr.Nil("Serve", "handle")
	}
	inner, cancel := context.WithCancel(ctx)
	var handlers sync.WaitGroup
	defer handlers.Wait()
	defer cancel()
	for {
		req, err := ln.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		handlers.Go(func() {
			defer func() {
				if req.answer() == nil {
					_ = req.drop() // it is over whatever becomes of it
				}
			}()
			handle(inner, req)
		})
	}
}
