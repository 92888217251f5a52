// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"context"
	"os"
	"sync"
	"time"
)

// deadline is a context that ends at the time that was set last.
type deadline struct {
	parent context.Context

	mu     sync.Mutex
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer // ends ctx; nil: there is none
}

// init sets the context that ends all others. There is no deadline until set is
// called.
func (d *deadline) init(parent context.Context) {
	d.parent = parent
	d.ctx, d.cancel = context.WithCancelCause(parent)
}

// context returns the context, whose cause is os.ErrDeadlineExceeded at the
// deadline. A later call of set may replace it.
func (d *deadline) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx
}

// set sets the time. The zero time means that there is no deadline.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	wait := time.Until(t)
	if d.timer != nil && d.timer.Stop() {
		if !t.IsZero() && wait > 0 {
			d.timer.Reset(wait) // most calls only move the deadline
			return
		}
	} else if d.timer != nil {
		d.cancel(os.ErrDeadlineExceeded) // the timer's function has started, and may not have come to this
	}
	d.timer = nil
	if !t.IsZero() && wait <= 0 {
		d.cancel(os.ErrDeadlineExceeded)
		return
	}
	if d.ctx.Err() != nil {
		d.ctx, d.cancel = context.WithCancelCause(d.parent)
	}
	if !t.IsZero() {
		cancel := d.cancel
		d.timer = time.AfterFunc(wait, func() { cancel(os.ErrDeadlineExceeded) })
	}
}
