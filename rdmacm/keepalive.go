package rdmacm

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// keepAlive asks periodically whether the peer is still there.
type keepAlive struct {
	mu    sync.Mutex
	timer *time.Timer // nil before the connection is up, and after its Close
}

// startKeepAlive begins to ask.
func (c *Conn) startKeepAlive() {
	if c.config.KeepAlive <= 0 || c.Err() != nil {
		return
	}
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	c.keepAlive.timer = time.AfterFunc(c.config.KeepAlive, c.checkPeer)
}

func (c *Conn) stopKeepAlive() {
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	if c.keepAlive.timer != nil {
		c.keepAlive.timer.Stop()
		c.keepAlive.timer = nil
	}
}

// checkPeer asks once, ends the connection if there is no answer, and otherwise
// has itself called again.
func (c *Conn) checkPeer() {
	if c.isPeerGone() && c.end(&EventError{Type: EventUnreachable, Status: -int(syscall.ETIMEDOUT)}) {
		background.add(c.hangUp)
	}
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	if c.keepAlive.timer != nil && c.Err() == nil {
		c.keepAlive.timer.Reset(c.config.KeepAlive)
	}
}

// isPeerGone writes no bytes to the peer's memory, which its device acknowledges
// without its program, and reports whether that does not happen in time. Behind
// a transfer it would wait for that, and a send waits for the peer's program; so
// nothing is asked while there are any.
func (c *Conn) isPeerGone() bool {
	if c.ops.sending() > 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.config.KeepAlive)
	defer cancel()
	op, err := c.ops.postSend(ctx, func(b *ibverbs.SendBatch, id uint64) error {
		if c.ops.sends.used > 0 { // others came first
			return errSending
		}
		return b.Write(id, ibverbs.RemoteBuffer{}, ibverbs.SendSignaled)
	}, nil)
	if err != nil {
		return false
	}
	for {
		before := c.ops.completions()
		// Twice, because the program itself may have been stopped for some time.
		for _, patience := range []time.Duration{c.config.KeepAlive, min(c.config.KeepAlive, time.Second)} {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			done, err := c.ops.wait(ctx, op)
			cancel()
			if done || !errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
		}
		if c.ops.completions() == before {
			return true
		}
	}
}

// errSending says that transfers are under way.
var errSending = errors.New("transfers are under way")

// sending returns how many send requests are under way.
func (o *operations) sending() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sends.used
}

// completions returns how many requests have completed.
func (o *operations) completions() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lastID - uint64(len(o.pending))
}
