// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// exchange posts receives and requests, either of which may be nil, and polls
// for at least least completions for a limited time.
func (e *end) exchange(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, cq *ibverbs.CQ, wcs []ibverbs.WC, least int) (int, error) {
	switch {
	case !e.Events:
		return e.qp.Exchange(recv, send, cq, wcs, least, ibverbs.MaxSpin)
	case !e.Netpoll:
		return e.qp.ExchangeAndSleep(recv, send, cq, wcs, least, ibverbs.MaxSpin)
	}
	if recv != nil {
		if _, err := e.qp.PostRecv(recv); err != nil {
			return 0, err
		}
	}
	if send != nil {
		if _, err := e.qp.PostSend(send); err != nil {
			return 0, err
		}
	}
	return e.wait(ctx, cq, wcs)
}

// look polls for completions for a limited time.
func (e *end) look(ctx context.Context, cq *ibverbs.CQ, wcs []ibverbs.WC) (int, error) {
	switch {
	case !e.Events:
		return cq.Spin(wcs, ibverbs.MaxSpin)
	case !e.Netpoll:
		return cq.Sleep(wcs, ibverbs.MaxSpin)
	}
	return e.wait(ctx, cq, wcs)
}

// wait waits for completions on Go's netpoller, until the duration is over.
func (e *end) wait(ctx context.Context, cq *ibverbs.CQ, wcs []ibverbs.WC) (int, error) {
	if e.deadline.IsZero() {
		return cq.Wait(ctx, wcs)
	}
	limited, cancel := context.WithDeadline(ctx, e.deadline)
	defer cancel()
	n, err := cq.Wait(limited, wcs)
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		return 0, nil // the caller checks the time
	}
	return n, err
}

// hopeless returns an error if a wait without result must end: ctx has ended,
// or the peer has finished and no more messages will arrive.
func (e *end) hopeless(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e.expired() {
		return errExpired
	}
	if !e.expecting {
		return nil
	}
	return e.control.ahead()
}

// expired reports whether the duration of the test is over.
func (e *end) expired() bool { return !e.deadline.IsZero() && !time.Now().Before(e.deadline) }

// errExpired ends a wait when the duration of the test is over.
var errExpired = errors.New("the duration of the test is over")

// turn posts receives and requests, either of which may be nil, and waits for
// the given number of completions.
func (e *end) turn(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, cq *ibverbs.CQ, wcs []ibverbs.WC, completions int) error {
	if ctx.Err() != nil { // the end of ctx counts even if there is nothing to wait for
		return context.Cause(ctx)
	}
	if send != nil && e.answered() {
		return e.answeredTurn(ctx, recv, send, completions-1)
	}
	n, err := e.exchange(ctx, recv, send, cq, wcs, completions)
	for {
		if err == nil {
			err = failed(wcs[:n])
		}
		if completions -= n; err != nil || completions <= 0 {
			return err
		}
		if n == 0 {
			if err := e.hopeless(ctx); err != nil {
				return err
			}
		}
		n, err = e.look(ctx, cq, wcs)
	}
}

// answeredTurn is like turn, but waits only for the peer's messages. It polls
// the completions of this end's messages now and then; they do not wake it.
func (e *end) answeredTurn(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, messages int) error {
	if e.unpolled >= pollBatch {
		var wcs [pollBatch]ibverbs.WC
		n, err := e.sends.Poll(wcs[:])
		if err == nil {
			err = failed(wcs[:n])
		}
		if err != nil {
			return err
		}
		e.unpolled -= n
	}
	e.unpolled++
	if messages == 0 {
		_, err := e.qp.PostSend(send)
		return err
	}
	var wcs [1]ibverbs.WC
	n, err := e.exchange(ctx, recv, send, e.recvs, wcs[:], 1)
	for err == nil && n == 0 {
		if err = e.hopeless(ctx); err == nil {
			n, err = e.look(ctx, e.recvs, wcs[:])
		}
	}
	return errors.Join(err, failed(wcs[:n]))
}

// poll waits for completions and returns their number, which is 0 if the
// duration is over.
func (e *end) poll(ctx context.Context, cq *ibverbs.CQ, wcs []ibverbs.WC) (int, error) {
	if ctx.Err() != nil { // the end of ctx counts even if there is nothing to wait for
		return 0, context.Cause(ctx)
	}
	for {
		n, err := e.look(ctx, cq, wcs)
		switch {
		case err != nil:
			return 0, err
		case n > 0:
			return n, failed(wcs[:n])
		}
		switch err := e.hopeless(ctx); {
		case errors.Is(err, errExpired):
			return 0, nil
		case err != nil:
			return 0, err
		}
	}
}

// failed returns the error of the first completion that has failed.
func failed(wcs []ibverbs.WC) error {
	for i := range wcs {
		if err := wcs[i].Err(); err != nil {
			return err
		}
	}
	return nil
}

// clock measures the time since its start.
type clock struct{ start time.Time }

func newClock() clock { return clock{time.Now()} }

func (c clock) now() time.Duration { return time.Since(c.start) }
