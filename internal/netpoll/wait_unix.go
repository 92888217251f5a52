// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll

import (
	"context"
	"fmt"
	"time"
)

// Wait calls try until it reports done or an error, and waits for readability
// between the calls. It returns
//
//   - nil when try is done, or when ready has fired,
//   - try's error,
//   - an error that is ctx.Err() and context.Cause(ctx) when ctx ends, and
//     os.ErrDeadlineExceeded too when it ends by its deadline,
//   - an error that is os.ErrClosed after Close.
//
// If an event and an end come together, the event wins: a try that is done and
// a ready that has fired are never turned into an error. With a ctx that is
// already done, Wait returns at once.
//
// A nil ready never fires. The package documentation says what try and ready
// must do.
func (f *FD) Wait(ctx context.Context, ready <-chan struct{}, try func() (done bool, err error)) error {
	if ctx.Err() != nil {
		return ContextError(ctx)
	}
	if f.isClosing() {
		return f.closedError()
	}
	select {
	case f.lead <- struct{}{}:
	default:
		if leads, err := f.follow(ctx, ready); !leads {
			return err
		}
	}
	// Deferred to give up the lead even if try panics.
	defer f.resign()
	f.turn.ctx, f.turn.try = ctx, try
	return f.waitAsLeader(ctx, ready)
}

// follow waits until the caller becomes the leader, or its wait is over. leads
// reports which.
func (f *FD) follow(ctx context.Context, ready <-chan struct{}) (leads bool, err error) {
	select {
	case f.lead <- struct{}{}:
		return true, nil
	case <-ready:
		return false, nil
	case <-ctx.Done():
		err = ContextError(ctx)
	case <-f.closing:
		err = f.closedError()
	}
	if fired(ready) { // select picks at random, but the event wins
		return false, nil
	}
	return false, err
}

// waitAsLeader does the work of Wait for the leader.
func (f *FD) waitAsLeader(ctx context.Context, ready <-chan struct{}) error {
	for {
		// Also right after taking the lead: the previous leader may have fired
		// ready, or the wait may have ended, before select chose the lead.
		switch {
		case fired(ready):
			return nil
		case ctx.Err() != nil:
			return ContextError(ctx)
		case f.isClosing():
			return f.closedError()
		}

		// Read first forgets old readiness, then calls step, then parks. What
		// arrives before step is found by try; what arrives later wakes us.
		err := f.raw.Read(f.step)
		if err == nil {
			return f.turn.err
		}
		if !f.interrupted(err) {
			return f.tryUnpolled(err)
		}
		// A cancel or a Kick has set the deadline. Clearing it before looking
		// at ctx and ready loses neither: both change these before they set it.
		_ = f.file.SetReadDeadline(time.Time{}) // fails only when closed
	}
}

// tryOrArm calls try. If the leader has to park, tryOrArm starts to watch the
// context, which costs time that a wait whose event is already there is spared.
// stop reports whether the leader need not park.
func (f *FD) tryOrArm() (stop bool) {
	done, err := f.callTry()
	if done || err != nil {
		f.turn.err = err
		return true
	}
	if f.turn.disarm == nil && f.turn.ctx.Done() != nil {
		f.turn.disarm = context.AfterFunc(f.turn.ctx, f.cancel)
	}
	return false
}

// tryUnpolled handles pollErr, the error of a descriptor that the netpoller
// cannot watch any more. That happens when epoll reports only EPOLLERR, as
// after the removal of a device. It calls try first, since the C library's
// error is more specific.
func (f *FD) tryUnpolled(pollErr error) error {
	done, err := f.callTry()
	if done || err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", f.name, pollErr)
}

// resign ends the caller's time as the leader.
func (f *FD) resign() {
	if f.turn.disarm != nil && !f.turn.disarm() {
		// cancel has been started. Its deadline must not hit the next leader,
		// so let it finish and then clear what it has set.
		<-f.canceled
		_ = f.file.SetReadDeadline(time.Time{}) // fails only when closed
	}
	f.turn = turn{}
	<-f.lead
}
