package rdmacm

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// parting is the end of a connection that the peer has to be told of. The
// kernel sends its message again until the peer answers, but only while it has
// the id; so that stays, without a queue pair, until the answer is there or the
// time is up.
type parting struct {
	dispatcher *dispatcher
	id         *ID
	over       chan struct{} // closed when nobody waits for the answer any more
	err        error         // why there is none; known when over is closed

	mu     sync.Mutex // guards what follows
	isOver bool
	timer  *time.Timer // nil before start
}

// expect begins to wait for the answer, before the peer is told.
func (p *parting) expect() {
	p.dispatcher.handle(p.id, func(ev *Event) {
		switch {
		case ev.Type == EventDisconnected && ev.Status == 0, ev.Type == EventRejected, ev.Type == EventTimewaitExit:
			p.end(nil)
		case ev.Type == EventDisconnected, ev.Type == EventDeviceRemoval, ev.Type == EventConnectError:
			p.end(ev.Err())
		}
	})
}

// start keeps the id until its peer has answered, or for as long as linger. The
// id and one use of the dispatcher become the parting's.
func (p *parting) start(linger time.Duration) error {
	if err := p.id.retire(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isOver {
		partings.add(p.finish)
		return nil
	}
	p.timer = time.AfterFunc(linger, func() {
		p.end(fmt.Errorf("connection: the peer has not answered its end within %v, which is Config.Linger: %w", linger, syscall.ETIMEDOUT))
	})
	return nil
}

// end notes how waiting for the answer has ended, once.
func (p *parting) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isOver {
		return
	}
	p.isOver, p.err = true, err
	close(p.over)
	if p.timer != nil {
		p.timer.Stop()
		partings.add(p.finish)
	}
}

// finish gives the id back.
func (p *parting) finish() {
	if p.id.finish() != nil {
		return // C keeps it, and so the dispatcher stays
	}
	p.dispatcher.forget(p.id)
	_ = p.dispatcher.release()
}

// Close ends the connection and gives up everything that belongs to it,
// including the memory from Alloc. Transfers that are under way fail. Memory
// that was registered on the connection's own protection domain by other means
// is to be closed before; while there is any, Close returns a BusyError, and
// can be called again. The connection has ended all the same.
//
// Close tells the peer, and does not wait for its answer. If that message is
// lost, the system sends it again, every 4 seconds or so, for as long as
// Config.Linger says; but not after the program has ended. A program that is
// about to end calls Shutdown instead.
func (c *Conn) Close() error {
	if err := c.self().check(); err != nil {
		return err
	}
	c.end(c.errClosed())
	c.stopKeepAlive()
	c.ending.Do(func() {
		established := c.id.saw(EventEstablished)
		c.parting.expect()
		isOver := c.id.isOver() // and needs no answer
		err := c.disconnect()
		switch {
		case !established || isOver:
		case err != nil:
			c.untold = err
		default:
			c.linger = max(c.config.Linger, 0)
		}
	})
	return c.release()
}

// Shutdown is Close that waits until the peer has answered, and so knows of the
// end; it need not wait if the peer has ended the connection itself. If ctx
// ends before, Shutdown returns an error that is ctx.Err(); the connection is
// closed all the same, and the peer is told on, as after Close. If there is no
// answer within Config.Linger, it returns one that is syscall.ETIMEDOUT; with a
// negative Linger it waits for none.
//
// A Conn at the other end answers by itself; its program need do nothing, but must
// be running. A program of C's answers when it disconnects, too.
func (c *Conn) Shutdown(ctx context.Context) error {
	if err := c.self().check(); err != nil {
		return err
	}
	if ctx == nil {
		return cerr.Nil("Conn.Shutdown", "ctx")
	}
	if err := c.Close(); err != nil {
		return err
	}
	select {
	case <-c.parting.over:
		return c.parting.err
	case <-ctx.Done():
		return contextError(ctx)
	}
}
