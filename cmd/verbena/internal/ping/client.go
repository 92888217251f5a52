// SPDX-License-Identifier: Apache-2.0

package ping

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// client is the end that sends messages and waits for the answers.
type client struct {
	*options
	out     program.Output
	end     *end           // the current connection; nil if there is none
	closing sync.WaitGroup // goroutines that close failed connections, for each of which the kernel may take a minute
	summary summary
	failed  error // error of the output
}

func (o *options) ping(ctx context.Context, out program.Output) error {
	c := &client{options: o, out: out, summary: summary{Host: o.host, Port: o.port, Size: o.size}}
	if err := c.connect(ctx); err != nil {
		return err
	}
	if !o.asJSON {
		c.out.Printf("PING %s from %s: messages of %d bytes\n", c.end.conn.RemoteAddr(), c.end.conn.LocalAddr().Addr(), o.size)
	}
	start := time.Now()
	for seq := 1; (o.count == 0 || seq <= o.count) && c.failed == nil; seq++ {
		if seq > 1 && !wait(ctx, time.Until(start.Add(time.Duration(seq-1)*o.interval))) {
			break
		}
		took, err := c.message(ctx, uint64(seq))
		if ctx.Err() != nil { // interrupted while waiting for the answer
			break
		}
		c.report(seq, took, err)
	}
	c.summary.Milliseconds = float64(time.Since(start).Microseconds()) / 1000
	err := errors.Join(c.failed, c.finish(), c.close())
	c.closing.Wait()
	if err != nil {
		return err
	}
	if lost := c.summary.Sent - c.summary.Answered; lost > 0 && (o.count > 0 || c.summary.Answered == 0) {
		return fmt.Errorf("%d of %d messages were not answered", lost, c.summary.Sent)
	}
	return nil
}

// wait waits for the duration d, and reports whether ctx has not ended
// meanwhile.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// connect connects to the server, within the time that an answer may take.
func (c *client) connect(ctx context.Context) error {
	e, err := newEnd(c.size)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := e.dial(limited, c.address()); err != nil {
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			err = fmt.Errorf("%w; does verbena ping -l run there?", err)
		case limited.Err() != nil && ctx.Err() == nil:
			err = fmt.Errorf("no connection to %s within %v: %w; verbena doctor %s checks the path to it", c.address(), c.timeout, err, c.host)
		}
		return err
	}
	c.end = e
	return nil
}

// close closes the connection.
func (c *client) close() error {
	if c.end == nil {
		return nil
	}
	conn := c.end.conn
	c.end = nil
	return conn.Close()
}

// message sends a message, on a new connection if the last one has failed, and
// returns how long the answer took.
func (c *client) message(ctx context.Context, seq uint64) (time.Duration, error) {
	if c.end == nil {
		if err := c.connect(ctx); err != nil {
			return 0, err
		}
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	took, err := c.end.exchange(limited, seq)
	if err == nil {
		return took, nil
	}
	if limited.Err() != nil {
		err = fmt.Errorf("no answer within %v", c.timeout)
	}
	conn := c.end.conn
	c.closing.Go(func() { _ = conn.Close() }) // the connection has failed already
	c.end = nil
	return 0, err
}
