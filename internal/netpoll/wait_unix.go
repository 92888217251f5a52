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
// If an event comes together with the end of ctx or with Close, the event wins:
// after a try that is done, or a ready that has fired, Wait returns no error.
// With a ctx that is already done, Wait returns at once.
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
	case f.polling <- struct{}{}:
	default:
		if polls, err := f.waitForTurn(ctx, ready); !polls {
			return err
		}
	}
	// Deferred, so that the caller stops polling even if try panics.
	defer f.endPolling()
	f.turn.ctx, f.turn.try = ctx, try
	return f.poll(ctx, ready)
}

// waitForTurn waits until the caller becomes the poller, or its wait is over.
// polls reports whether the caller is the poller.
func (f *FD) waitForTurn(ctx context.Context, ready <-chan struct{}) (polls bool, err error) {
	select {
	case f.polling <- struct{}{}:
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

// poll does the work of Wait while the caller is the poller.
func (f *FD) poll(ctx context.Context, ready <-chan struct{}) error {
	for {
		// This is also checked before the first Read: the previous
		// poller may have fired ready, or the wait may have ended,
		// before this goroutine became the poller.
		switch {
		case fired(ready):
			return nil
		case ctx.Err() != nil:
			return ContextError(ctx)
		case f.isClosing():
			return f.closedError()
		}

		// Read first forgets old readiness, then calls step, then
		// parks. try finds events that arrive before step; later ones
		// wake the goroutine.
		err := f.raw.Read(f.step)
		if err == nil {
			return f.turn.err
		}
		if !f.interrupted(err) {
			return f.tryUnpolled(err)
		}
		// A cancel or a Kick has set the deadline. Both do so after ctx
		// or ready has changed. So no change is missed if the deadline
		// is cleared before ctx and ready are checked.
		_ = f.file.SetReadDeadline(time.Time{}) // fails only when closed
	}
}

// tryOrArm calls try. If there is no event, so that the poller has to park,
// tryOrArm starts to watch the context. Wait does not do so earlier, since
// watching costs time. stop reports whether the poller need not park.
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

// tryUnpolled is called with pollErr when the netpoller cannot watch the
// descriptor any more. That happens when epoll reports only EPOLLERR, as after
// the removal of a device. tryUnpolled calls try, and returns try's error if
// there is one, since it is more specific than pollErr.
func (f *FD) tryUnpolled(pollErr error) error {
	done, err := f.callTry()
	if done || err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", f.name, pollErr)
}

// endPolling ends the caller's time as the poller.
func (f *FD) endPolling() {
	if f.turn.disarm != nil && !f.turn.disarm() {
		// cancel is running or has run. The deadline that it sets must
		// not end the next poller's sleep, so wait for cancel and clear
		// the deadline.
		<-f.canceled
		_ = f.file.SetReadDeadline(time.Time{}) // fails only when closed
	}
	f.turn = turn{}
	<-f.polling
}
