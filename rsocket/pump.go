// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// pump takes completions from a completion queue, which belongs to one
// connection or to a part of a pool. It has no goroutine: each goroutine that
// has to wait tries to get the pump. The one that holds it takes completions
// for all connections until its own wait is over. The others wait for the wake
// of their side, or for the pump.
type pump struct {
	channel *ibverbs.CompChannel
	cq      *ibverbs.CQ
	handle  func(wcs []ibverbs.WC, err error) // called with what was taken, and with the queue's failure, if any
	lock    chan struct{}                     // full while a goroutine holds the pump
	wcs     []ibverbs.WC                      // scratch space of that goroutine

	mu      sync.Mutex
	onTaken []func() // called once all present completions were taken; guarded by mu
}

func (p *pump) init(handle func([]ibverbs.WC, error)) {
	p.handle, p.lock = handle, make(chan struct{}, 1)
}

// create creates the completion queue. After an error, the caller calls close.
func (p *pump) create(device *ibverbs.Device, entries int, spin time.Duration) (err error) {
	if p.channel, err = device.CreateCompChannel(); err != nil {
		return err
	}
	p.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: entries, Channel: p.channel, Spin: spin})
	p.wcs = make([]ibverbs.WC, completions)
	return err
}

// completions is the number of completions taken at a time.
const completions = 32

func (p *pump) close() error {
	var errs []error
	if p.cq != nil {
		errs = append(errs, p.cq.Close())
	}
	if p.channel != nil {
		errs = append(errs, p.channel.Close())
	}
	return errors.Join(errs...)
}

// afterTaken calls f when all completions that are in the queue now were taken.
// The goroutine that holds the pump makes the call.
func (p *pump) afterTaken(f func()) {
	p.mu.Lock()
	p.onTaken = append(p.onTaken, f)
	p.mu.Unlock()
	p.cq.Wake()
}

// takeAll takes all present completions, or waits until the goroutine that
// holds the pump has done so.
func (p *pump) takeAll() {
	taken := make(chan struct{})
	p.afterTaken(func() { close(taken) })
	select {
	case <-taken:
	case p.lock <- struct{}{}:
		p.catchUp()
		<-p.lock
	}
}

// catchUp takes all present completions if afterTaken was called, and then
// calls the functions that it was called with. The caller holds the pump.
func (p *pump) catchUp() {
	p.mu.Lock()
	calls := p.onTaken
	p.onTaken = nil
	p.mu.Unlock()
	if len(calls) == 0 {
		return
	}
	p.empty()
	for _, f := range calls {
		f()
	}
}

// background is the context of most waits, which CQ.Wake ends.
var background = context.Background()

// lead takes completions until the side is woken. It returns an error when the
// deadline has passed or the connection is closed. The caller holds the pump.
func (p *pump) lead(c *Conn, s *side) error {
	for {
		p.catchUp()
		switch {
		case fired(s.wake): // first, as the caller's condition may be met
			return nil
		case fired(c.closed):
			return net.ErrClosed
		case s.deadline.hasPassed():
			return os.ErrDeadlineExceeded
		}
		n, err := p.cq.Wait(background, p.wcs)
		if n > 0 || err != nil {
			p.handle(p.wcs[:n], err)
		}
	}
}

// await takes completions, or lets another goroutine do so, until the function
// returns true. Its result may change when a request of the connection
// completes or the connection ends. await returns early when the context ends
// or the queue fails. The caller owns c.closer.
func (p *pump) await(ctx context.Context, c *Conn, until func() bool) {
	for !until() {
		select {
		case <-c.closer.wake:
			continue
		case <-ctx.Done():
			return
		case p.lock <- struct{}{}:
		}
		var failed error
		for failed == nil && !until() {
			p.catchUp()
			if until() {
				break
			}
			var n int
			n, failed = p.cq.Wait(ctx, p.wcs)
			if failed != nil && ctx.Err() != nil {
				p.handle(p.wcs[:n], nil)
			} else {
				p.handle(p.wcs[:n], failed)
			}
		}
		<-p.lock
		if failed != nil {
			return
		}
	}
}

// poll takes the present completions, unless another goroutine holds the pump.
func (p *pump) poll() {
	select {
	case p.lock <- struct{}{}:
	default:
		return
	}
	if n, err := p.cq.Poll(p.wcs); n > 0 || err != nil {
		p.handle(p.wcs[:n], err)
	}
	<-p.lock
}

// empty takes all present completions. The caller holds the pump.
func (p *pump) empty() {
	for left := p.cq.Cap(); left > 0; {
		n, err := p.cq.Poll(p.wcs)
		if n > 0 || err != nil {
			p.handle(p.wcs[:n], err)
		}
		if n == 0 {
			return
		}
		left -= n
	}
}
