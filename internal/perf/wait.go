package perf

import (
	"context"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// turn posts receives and requests, either of which may be nil, and waits for
// so many completions.
func (e *end) turn(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, cq *ibverbs.CQ, wcs []ibverbs.WC, completions int) error {
	if e.Events {
		return e.sleepTurn(ctx, recv, send, cq, wcs, completions)
	}
	n, err := e.qp.Exchange(recv, send, cq, wcs, completions, ibverbs.MaxSpin)
	for {
		if err == nil {
			err = failed(wcs[:n])
		}
		if completions -= n; err != nil || completions <= 0 {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err = cq.Spin(wcs, ibverbs.MaxSpin)
	}
}

func (e *end) sleepTurn(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, cq *ibverbs.CQ, wcs []ibverbs.WC, completions int) error {
	if recv != nil {
		if _, err := e.qp.PostRecv(recv); err != nil {
			return err
		}
	}
	if send != nil {
		if _, err := e.qp.PostSend(send); err != nil {
			return err
		}
	}
	for completions > 0 {
		n, err := e.poll(ctx, cq, wcs)
		if err != nil {
			return err
		}
		completions -= n
	}
	return nil
}

// poll returns completions when there are any.
func (e *end) poll(ctx context.Context, cq *ibverbs.CQ, wcs []ibverbs.WC) (int, error) {
	look := cq.Spin
	if e.Events {
		look = cq.Sleep
	}
	for {
		n, err := look(wcs, ibverbs.MaxSpin)
		switch {
		case err != nil:
			return 0, err
		case n > 0:
			return n, failed(wcs[:n])
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		}
	}
}

// failed returns the error of the first completion that has one.
func failed(wcs []ibverbs.WC) error {
	for i := range wcs {
		if err := wcs[i].Err(); err != nil {
			return err
		}
	}
	return nil
}

// clock tells how long it has been running.
type clock struct{ start time.Time }

func newClock() clock { return clock{time.Now()} }

func (c clock) now() time.Duration { return time.Since(c.start) }
