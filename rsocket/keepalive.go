// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"sync"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// keepAlive calls check at an interval, while checks are on.
type keepAlive struct {
	check func()

	mu     sync.Mutex
	period time.Duration // interval of the checks; kept while they are off
	timer  *time.Timer   // nil while checks are off
	over   bool
}

// start sets the function and the interval of the checks, and turns them on if
// period is positive.
func (k *keepAlive) start(period time.Duration, check func()) {
	k.check, k.period = check, defaultKeepAlive
	if period > 0 {
		k.set(true, period)
	}
}

// set turns the checks on or off. If period is positive, it becomes the
// interval.
func (k *keepAlive) set(on bool, period time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
		k.timer = nil
	}
	if period > 0 {
		k.period = period
	}
	if on && !k.over {
		k.timer = time.AfterFunc(k.period, k.checkAndGoOn)
	}
}

// checkAndGoOn does a check and starts the timer of the next.
func (k *keepAlive) checkAndGoOn() {
	k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Reset(k.period)
	}
}

// stop turns the checks off for good.
func (k *keepAlive) stop() {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.set(false, 0)
}

// checkPeer posts an RDMA write of no bytes to the peer, unless a request is in
// flight. The request fails if the peer's device does not answer. The goroutine
// that holds the pump takes its completion.
func (c *Conn) checkPeer() {
	c.pump.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.post(c.state.KeepAlive())
}

// SetKeepAlive turns checks on or off that the peer's device still answers.
// This end checks only while it has nothing in flight. A check is an RDMA write
// of no bytes, which the peer's program does not notice. If the peer's device
// does not answer, a waiting Read fails. On iWARP, an end that has accepted the
// connection checks only once a first message of the peer has arrived: a
// deadline ends the wait for that one.
func (c *Conn) SetKeepAlive(on bool) error {
	if err := c.open("set"); err != nil {
		return err
	}
	c.keepAlive.set(on, 0)
	return nil
}

// SetKeepAlivePeriod sets the interval of the checks that SetKeepAlive turns
// on. d must be positive.
func (c *Conn) SetKeepAlivePeriod(d time.Duration) error {
	if err := c.open("set"); err != nil {
		return err
	}
	if d <= 0 {
		return c.opError("set", cerr.Invalid("keepalive period of %v, which is not positive", d))
	}
	c.keepAlive.mu.Lock()
	on := c.keepAlive.timer != nil
	c.keepAlive.mu.Unlock()
	c.keepAlive.set(on, d)
	return nil
}
