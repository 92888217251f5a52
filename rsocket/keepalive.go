// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"sync"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// keepAlive is the timer for the checks of the peer.
type keepAlive struct {
	check func()

	mu     sync.Mutex
	period time.Duration // also while there are no checks
	timer  *time.Timer   // nil while there are none
	over   bool
}

// start starts the checks, if the period is positive.
func (k *keepAlive) start(period time.Duration, check func()) {
	k.check, k.period = check, defaultKeepAlive
	if period > 0 {
		k.set(true, period)
	}
}

// set starts the checks anew, or stops them. A period of 0 leaves it as it is.
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

// stop ends the checks for ever.
func (k *keepAlive) stop() {
	k.mu.Lock()
	k.over = true
	k.mu.Unlock()
	k.set(false, 0)
}

// checkPeer writes nothing to the peer, unless something is on its way. If the peer's device does not answer, the request fails, whose
// completion whoever waits takes.
func (c *Conn) checkPeer() {
	c.pump.poll()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.post(c.state.KeepAlive())
}

// SetKeepAlive sets whether this end checks, while it has nothing on its way, that the peer's device still answers. A check is an RDMA
// write of no bytes, which the peer's program does not notice. Whoever waits in Read learns of a peer that does not answer.
func (c *Conn) SetKeepAlive(on bool) error {
	if err := c.open("set"); err != nil {
		return err
	}
	c.keepAlive.set(on, 0)
	return nil
}

// SetKeepAlivePeriod sets how often the check is done; d must be positive.
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
