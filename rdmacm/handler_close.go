package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
)

// Close closes the id, with the queue pair that CreateQP has made; a connection
// ends with it, and a request that nobody has answered is rejected. Events that
// have not been handled are dropped. The peer is told of the end once, and hears
// nothing if that message is lost; ID().Disconnect tells it again until
// EventDisconnected comes.
//
// While a handler of the id runs, Close does nothing and returns an error that
// is syscall.EBUSY, from anywhere: a handler ends its id by returning an error,
// and others wait with Shutdown.
func (h *HandledID) Close() error {
	if err := h.made(); err != nil {
		return err
	}
	h.closing.Lock()
	defer h.closing.Unlock()
	h.mu.Lock()
	isRunning := h.running != nil
	h.mu.Unlock()
	if isRunning {
		return cerr.Argument("HandledID.Close", h.id.object.Name(),
			cerr.InvalidAs(syscall.EBUSY, "the handler is running; return an error from that, or wait with Shutdown"))
	}
	return h.destroy()
}

// Shutdown is Close that waits for the handler if it is running, and lets it
// begin no more. A handler must not wait for its own end with it. It returns an
// error that is ctx.Err() when ctx ends; the id is as it was then.
func (h *HandledID) Shutdown(ctx context.Context) error {
	if err := h.made(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("HandledID.Shutdown", "ctx")
	}
	running := h.stop()
	defer h.resume()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
			return contextError(ctx)
		}
	}
	return h.Close()
}

// stop keeps the handler from beginning, and returns what a running one closes.
func (h *HandledID) stop() (running <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopping++
	return h.running
}

func (h *HandledID) resume() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping--; h.stopping == 0 && len(h.events) > 0 {
		h.work()
	}
}

// end closes the id after its handler has returned an error.
func (h *HandledID) end() {
	h.closing.Lock()
	defer h.closing.Unlock()
	if err := h.destroy(); err != nil {
		h.mu.Lock()
		h.cause = errors.Join(h.cause, err)
		h.mu.Unlock()
		h.sayDone()
	}
}

// destroy closes what the id has and the id. After an error it can be called
// again. The caller holds closing.
func (h *HandledID) destroy() error {
	if h.closed {
		return nil
	}
	if h.qp != nil {
		if err := h.qp.Close(); err != nil {
			return err
		}
	}
	h.keep.RemoveParent(&h.id.object)
	if err := h.id.Close(); err != nil {
		h.keep.AddParent(&h.id.object)
		return err
	}
	h.closed = true
	h.mu.Lock()
	if h.cause == nil {
		h.cause = fmt.Errorf("%s: %w", h.id.object.Name(), os.ErrClosed)
	}
	h.mu.Unlock()
	h.dispatcher.forget(h.id)
	err := h.dispatcher.release()
	h.sayDone()
	return err
}

// sayDone closes done, once. The caller holds closing.
func (h *HandledID) sayDone() {
	select {
	case <-h.done:
	default:
		close(h.done)
	}
}
