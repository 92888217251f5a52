package perf

import (
	"context"
	"errors"
	"runtime"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// turn posts receives and requests, either of which may be nil, and waits for
// so many completions.
func (e *end) turn(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, cq *ibverbs.CQ, wcs []ibverbs.WC, completions int) error {
	exchange, look := e.qp.Exchange, cq.Spin
	if e.Events {
		exchange, look = e.qp.ExchangeAndSleep, cq.Sleep
		if send != nil && e.sends != e.recvs {
			return e.answeredTurn(ctx, recv, send, completions-1)
		}
	}
	n, err := exchange(recv, send, cq, wcs, completions, ibverbs.MaxSpin)
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
		n, err = look(wcs, ibverbs.MaxSpin)
	}
}

// answeredTurn is turn that sleeps for the peer's message only. That this end's
// has been sent is looked at now and then, and does not wake it.
func (e *end) answeredTurn(ctx context.Context, recv *ibverbs.RecvBatch, send *ibverbs.SendBatch, messages int) error {
	var wcs [pollBatch]ibverbs.WC
	if e.unpolled >= len(wcs) {
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
	n, err := e.qp.ExchangeAndSleep(recv, send, e.recvs, wcs[:1], 1, ibverbs.MaxSpin)
	for err == nil && n == 0 && ctx.Err() == nil {
		n, err = e.recvs.Sleep(wcs[:1], ibverbs.MaxSpin)
	}
	if err == nil && n == 0 {
		err = context.Cause(ctx)
	}
	return errors.Join(err, failed(wcs[:n]))
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

// clock tells how long it has been running. As loops that never block look at it,
// it lets the runtime schedule now and then: otherwise the runtime's monitor, which
// looks every 10 ms, would interrupt them. While spinning, ibverbs does so.
type clock struct {
	start     time.Time
	scheduled time.Duration
}

func newClock() *clock { return &clock{start: time.Now()} }

func (c *clock) now() time.Duration {
	t := time.Since(c.start)
	if t-c.scheduled >= 8*time.Millisecond {
		c.scheduled = t
		runtime.Gosched()
	}
	return t
}
