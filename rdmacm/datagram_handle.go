package rdmacm

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/verbena-go/verbena/ibverbs"
)

// maxHandles is how many address handles are kept, apart from those in use.
const maxHandles = 1024

// handles are the address handles of an end for datagrams. Each is made when
// the first datagram takes its path.
type handles struct {
	pd     *ibverbs.PD
	limit  int
	making sync.WaitGroup

	mu     sync.Mutex // guards what follows, and the handles' users
	known  map[ibverbs.AHAttr]*handle
	closed bool
}

type handle struct {
	made  chan struct{} // closed when ah or err is set
	ah    *ibverbs.AH
	err   error
	users int
}

func (hs *handles) init(pd *ibverbs.PD) {
	hs.pd, hs.limit, hs.known = pd, maxHandles, map[ibverbs.AHAttr]*handle{}
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
}

// find returns the handle for a path, which may be on its way still.
func (hs *handles) find(path ibverbs.AHAttr) (*handle, error) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if hs.closed {
		return nil, fmt.Errorf("datagrams: %w", os.ErrClosed)
	}
	h := hs.known[path]
	if h == nil {
		if len(hs.known) >= hs.limit {
			hs.evict()
		}
		h = &handle{made: make(chan struct{})}
		hs.known[path] = h
		// The kernel may look for the path's end for seconds, with a thread that
		// no context can have back.
		hs.making.Go(func() { hs.make(h, path) })
	}
	h.users++
	return h, nil
}

func (hs *handles) make(h *handle, path ibverbs.AHAttr) {
	ah, err := hs.pd.CreateAH(path)
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.ah, h.err = ah, err
	if err != nil {
		delete(hs.known, path) // the next one may be luckier
	}
	close(h.made)
}

// evict closes one of the handles that nothing uses, if there are any.
func (hs *handles) evict() {
	for path, h := range hs.known {
		if h.ah != nil && h.users == 0 && h.ah.Close() == nil {
			delete(hs.known, path)
			return
		}
	}
}

// close closes all handles when the queue pair is gone.
func (hs *handles) close() error {
	hs.mu.Lock()
	hs.closed = true
	hs.mu.Unlock()
	hs.making.Wait()
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for path, h := range hs.known {
		if err := h.ah.Close(); err != nil {
			return err
		}
		delete(hs.known, path)
	}
	return nil
}
