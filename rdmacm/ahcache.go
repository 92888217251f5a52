// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

const (
	// maxHandles is the maximum number of cached address handles. The cache
	// may exceed it while all handles are in use.
	maxHandles = 1024
	// maxMakers is the maximum number of handles that are created at once.
	// Each creation may block an OS thread for seconds, and other hosts can
	// cause creations, because a reply to a datagram needs a handle for its
	// sender.
	maxMakers = 8
	// maxQueued is the maximum number of handles that may wait for their
	// creation.
	maxQueued = 64
	// unreachableFor is the time after a failed creation during which it is
	// not retried.
	unreachableFor = 3 * time.Second
)

// handles caches the address handles of a DatagramConn. It creates a handle for
// the first datagram to each path.
type handles struct {
	create    func(ibverbs.AHAttr) (*ibverbs.AH, error) // creates a handle; no context can cancel it
	errClosed func() error                              // returns the error after close
	limit     int                                       // maximum number of cached handles
	makers    sync.WaitGroup

	mu     sync.Mutex // guards the fields below, and the handles
	known  map[ibverbs.AHAttr]*handle
	queued []*handle // handles waiting for creation, in order
	making int       // number of goroutines that create handles
	closed bool
}

type handle struct {
	path    ibverbs.AHAttr
	made    chan struct{} // closed when ah or err is set
	ah      *ibverbs.AH
	err     error
	expires time.Time // end of the time during which err is returned without another attempt
	users   int       // number of callers of get that have not called put
}

func (hs *handles) init(create func(ibverbs.AHAttr) (*ibverbs.AH, error), errClosed func() error) {
	hs.create, hs.errClosed, hs.limit, hs.known = create, errClosed, maxHandles, map[ibverbs.AHAttr]*handle{}
}

// get returns the handle for a path and waits until it has been created. The
// caller must release it with put.
func (hs *handles) get(ctx context.Context, path ibverbs.AHAttr) (*handle, error) {
	h, err := hs.find(path)
	if err != nil {
		return nil, err
	}
	select {
	case <-h.made: // checked first: a made handle takes precedence over the end of ctx
		err = h.err
	default:
		select {
		case <-h.made:
			err = h.err
		case <-ctx.Done():
			err = contextError(ctx)
		}
	}
	if err != nil {
		hs.put(h)
		return nil, err
	}
	return h, nil
}

// put releases a handle that get returned.
func (hs *handles) put(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.users--
	if h.users > 0 {
		return
	}
	if i := slices.Index(hs.queued, h); i >= 0 { // no caller waits for it anymore
		hs.queued = slices.Delete(hs.queued, i, i+1)
		delete(hs.known, h.path)
	}
}

// find returns the handle for a path and counts the caller as a user. The
// handle may not have been created yet.
func (hs *handles) find(path ibverbs.AHAttr) (*handle, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.closed {
		return nil, hs.errClosed()
	}
	h := hs.known[path]
	if h == nil || h.err != nil && time.Now().After(h.expires) {
		if len(hs.queued) >= maxQueued {
			return nil, cerr.Argument("ibv_create_ah", "", cerr.InvalidAs(syscall.ENOBUFS, "%d addresses are already being resolved", maxMakers+maxQueued))
		}
		if len(hs.known) >= hs.limit {
			hs.evict()
		}
		h = &handle{path: path, made: make(chan struct{})}
		hs.known[path] = h
		if hs.making < maxMakers {
			hs.making++
			hs.makers.Go(func() { hs.make(h) })
		} else {
			hs.queued = append(hs.queued, h)
		}
	}
	h.users++
	return h, nil
}

// make creates a handle, then every handle that waits for creation.
func (hs *handles) make(h *handle) {
	for h != nil {
		ah, err := hs.create(h.path)
		h = hs.finish(h, ah, err)
	}
}

// finish records the result of creating a handle and returns the next one to
// create, or nil.
func (hs *handles) finish(h *handle, ah *ibverbs.AH, err error) (next *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.ah, h.err, h.expires = ah, err, time.Now().Add(unreachableFor)
	close(h.made)
	if len(hs.queued) == 0 {
		hs.making--
		return nil
	}
	next = hs.queued[0]
	hs.queued = slices.Delete(hs.queued, 0, 1)
	return next
}

// evict closes one unused handle, if there is one.
func (hs *handles) evict() {
	for path, h := range hs.known {
		if h.users == 0 && (h.err != nil || h.ah != nil && h.ah.Close() == nil) {
			delete(hs.known, path)
			return
		}
	}
}

// close closes all handles. The queue pair must be closed first.
func (hs *handles) close() error {
	hs.mu.Lock()
	hs.closed = true
	for _, h := range hs.queued {
		h.err = hs.errClosed()
		close(h.made)
	}
	hs.queued = nil
	hs.mu.Unlock()
	hs.makers.Wait()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for path, h := range hs.known {
		if h.ah != nil {
			if err := h.ah.Close(); err != nil {
				return err
			}
		}
		delete(hs.known, path)
	}
	return nil
}
