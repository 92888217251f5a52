// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"net"
	"os"
)

// side is one direction of a connection. One call at a time uses it.
type side struct {
	lock     chan struct{} // full while a call uses the direction
	wake     chan struct{} // makes the call that uses the direction check its condition again
	deadline deadline
}

// init creates the channels.
func (s *side) init() { s.lock, s.wake = make(chan struct{}, 1), make(chan struct{}, 1) }

// signal makes the call that uses the direction check its condition again.
func (s *side) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// end ends the use of the direction that begin has started.
func (s *side) end() { <-s.lock }

// begin makes the caller the user of a direction of the connection, until it
// calls end.
func (c *Conn) begin(s *side) error { return s.begin(c.closed) }

// begin makes the caller the user of the direction, until it calls end. It
// waits for the call that uses the direction now, until the deadline or until
// closed is closed.
func (s *side) begin(closed <-chan struct{}) error {
	switch {
	case fired(closed):
		return net.ErrClosed
	case s.deadline.hasPassed():
		return os.ErrDeadlineExceeded
	}
	select {
	case s.lock <- struct{}{}:
		return nil
	default:
	}
	for {
		passed := s.deadline.wait()
		select {
		case s.lock <- struct{}{}:
			return nil
		case <-closed:
			return net.ErrClosed
		case <-passed:
			if s.deadline.hasPassed() {
				return os.ErrDeadlineExceeded
			}
		}
	}
}

// tryBegin is like begin, but fails if another call uses the direction.
func (s *side) tryBegin(closed <-chan struct{}) error {
	if fired(closed) {
		return net.ErrClosed
	}
	select {
	case s.lock <- struct{}{}:
		return nil
	default:
		return errWouldBlock
	}
}

// retire makes all later calls of begin and tryBegin fail, as the connection is
// closed. It returns false if a call uses the direction.
func (s *side) retire() bool {
	select {
	case s.lock <- struct{}{}:
		return true
	default:
		return false
	}
}

// wait waits until the condition of the call that uses s may be true. The
// caller holds c.mu, which wait unlocks meanwhile.
func (c *Conn) wait(s *side) error {
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case c.pump.lock <- struct{}{}: // usually free; the select below takes longer
		err := c.pump.takeUntil(c, s)
		c.pump.unlockAfterWait()
		return err
	default:
	}
	passed := s.deadline.wait()
	switch {
	case fired(c.closed):
		return net.ErrClosed
	case fired(passed):
		return os.ErrDeadlineExceeded
	}
	select {
	case <-s.wake:
	case <-c.closed:
	case <-passed:
	case c.pump.lock <- struct{}{}:
		err := c.pump.takeUntil(c, s)
		c.pump.unlockAfterWait()
		return err
	}
	return nil
}
