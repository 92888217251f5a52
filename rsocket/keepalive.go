// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"sync"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// keepAlive is the timer for checks of the peer.
type keepAlive struct {
	check func()

	mu     sync.Mutex
	period time.Duration // kept while checks are off
	timer  *time.Timer   // nil while checks are off
	over   bool
}

// start starts the checks, if the period is positive.
func (k *keepAlive) start(period time.Duration, check func()) {
	k.check, k.period = check, defaultKeepAlive
	if period > 0 {
		k.set(true, period)
	}
}

// set restarts the checks, or stops them. A period of 0 leaves the period
// unchanged.
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

func (k *keepAlive) checkAndGoOn() {
	k.check()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Reset(k.period)
	}
}

// stop stops the checks for good.
func (k *keepAlive) stop() {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.set(false, 0)
}

// checkPeer posts a write of no bytes to the peer, unless requests are in
// flight. If the peer's device does not answer, the request fails. The
// goroutine that holds the pump takes its completion.
func (c *Conn) checkPeer() {
	c.pump.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.post(c.state.KeepAlive())
}

// SetKeepAlive sets whether this end, while it has nothing in flight, checks
// that the peer's device still answers. A check is an RDMA write of no bytes,
// which the peer's program does not notice. If the peer does not answer, a
// waiting Read fails.
func (c *Conn) SetKeepAlive(on bool) error {
	if err := c.open("set"); err != nil {
		return err
	}
	c.keepAlive.set(on, 0)
	return nil
}

// SetKeepAlivePeriod sets the time between checks. d must be positive.
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
