// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// answers waits for the events that answer an ID's calls, such as Connect, one
// at a time.
type answers struct {
	events chan *Event
	over   <-chan struct{} // if not nil, closed when no more answers will arrive
	why    func() error    // returns the reason why over was closed
	within time.Duration   // maximum time for an answer; no limit if not positive
	// stays, if not nil, is called when the context of ask ends. It reports
	// whether ask must keep waiting for the answer.
	stays func(ctx context.Context) bool

	mu    sync.Mutex
	waits bool // whether ask waits for an event
}

func newAnswers() answers { return answers{events: make(chan *Event, 1)} }

// offer gives an event to ask if ask waits for one, and reports whether it has
// done so.
func (a *answers) offer(ev *Event) bool {
	if !a.forget() {
		return false
	}
	a.events <- ev // there is room, as ask waits for one event at a time
	return true
}

// forget makes ask expect no event, and reports whether it expected one.
func (a *answers) forget() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	waits := a.waits
	a.waits = false
	return waits
}

// isAsking reports whether ask expects an event.
func (a *answers) isAsking() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waits
}

// ask calls start and waits for the event that answers it. If the event reports
// a failure, ask returns the failure as an error.
func (a *answers) ask(ctx context.Context, start func() error) (*Event, error) {
	a.mu.Lock()
	a.waits = true
	a.mu.Unlock()
	if err := start(); err != nil {
		a.forget() // no answer will arrive
		return nil, err
	}
	var late <-chan time.Time
	if a.within > 0 {
		timer := time.NewTimer(a.within)
		defer timer.Stop()
		late = timer.C
	}
	ended := ctx.Done()
	for {
		select {
		case ev := <-a.events:
			return ev, ev.Err()
		case <-a.over:
			select {
			case ev := <-a.events: // the answer arrived just before the end
				return ev, ev.Err()
			default:
				return nil, a.why()
			}
		case <-ended:
			if a.stays == nil || !a.stays(ctx) {
				return nil, contextError(ctx)
			}
			ended = nil
		case <-late:
			return nil, fmt.Errorf("the peer has not answered within %v, which is Config.HandshakeTimeout: %w", a.within, syscall.ETIMEDOUT)
		}
	}
}
