package rdmacm

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

const (
	// maxHandles is how many address handles are kept, apart from those in use.
	maxHandles = 1024
	// maxMakers is how many are made at once, because each may hold a thread
	// for seconds, and anybody who sends a datagram chooses whom to answer.
	maxMakers = 8
	// maxUnmade is how many may wait for that.
	maxUnmade = 64
	// unreachableFor is how long one is not tried again that could not be made.
	unreachableFor = 3 * time.Second
)

// handles are the address handles of an end for datagrams. Each is made when
// the first datagram takes its path.
type handles struct {
	create func(ibverbs.AHAttr) (*ibverbs.AH, error) // which no context can have back
	limit  int
	makers sync.WaitGroup

	mu     sync.Mutex // guards what follows, and the handles
	known  map[ibverbs.AHAttr]*handle
	unmade []*handle // to be made, in order
	making int
	closed bool
}

type handle struct {
	path    ibverbs.AHAttr
	made    chan struct{} // closed when ah or err is set
	ah      *ibverbs.AH
	err     error
	expires time.Time // of err
	users   int
}

func (hs *handles) init(create func(ibverbs.AHAttr) (*ibverbs.AH, error)) {
	hs.create, hs.limit, hs.known = create, maxHandles, map[ibverbs.AHAttr]*handle{}
}

// get returns the handle for a path, whose user the caller is until put.
func (hs *handles) get(ctx context.Context, path ibverbs.AHAttr) (*handle, error) {
	h, err := hs.find(path)
	if err != nil {
		return nil, err
	}
	select {
	case <-h.made: // which wins over a ctx that is done
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

// put ends what get began.
func (hs *handles) put(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.users--
	if h.users > 0 {
		return
	}
	if i := slices.Index(hs.unmade, h); i >= 0 { // nobody waits for it any more
		hs.unmade = slices.Delete(hs.unmade, i, i+1)
		delete(hs.known, h.path)
	}
}

// find returns the handle for a path, which may be on its way still.
func (hs *handles) find(path ibverbs.AHAttr) (*handle, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.closed {
		return nil, errHandlesClosed
	}
	h := hs.known[path]
	if h == nil || h.err != nil && time.Now().After(h.expires) {
		if len(hs.unmade) >= maxUnmade {
			return nil, cerr.Argument("ibv_create_ah", "", cerr.InvalidAs(syscall.ENOBUFS, "%d other ends are being looked for already", maxMakers+maxUnmade))
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
			hs.unmade = append(hs.unmade, h)
		}
	}
	h.users++
	return h, nil
}

var errHandlesClosed = fmt.Errorf("datagrams: %w", os.ErrClosed)

// make makes a handle, and then those that wait to be made.
func (hs *handles) make(h *handle) {
	for h != nil {
		ah, err := hs.create(h.path)
		h = hs.finish(h, ah, err)
	}
}

// finish notes what came of a handle, and returns the next one to be made, nil
// if there is none.
func (hs *handles) finish(h *handle, ah *ibverbs.AH, err error) (next *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.ah, h.err, h.expires = ah, err, time.Now().Add(unreachableFor)
	close(h.made)
	if len(hs.unmade) == 0 {
		hs.making--
		return nil
	}
	next = hs.unmade[0]
	hs.unmade = slices.Delete(hs.unmade, 0, 1)
	return next
}

// evict gives up one of the handles that nothing uses, if there are any.
func (hs *handles) evict() {
	for path, h := range hs.known {
		if h.users == 0 && (h.err != nil || h.ah != nil && h.ah.Close() == nil) {
			delete(hs.known, path)
			return
		}
	}
}

// close closes all handles when the queue pair is gone.
func (hs *handles) close() error {
	hs.mu.Lock()
	hs.closed = true
	for _, h := range hs.unmade {
		h.err = errHandlesClosed
		close(h.made)
	}
	hs.unmade = nil
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
