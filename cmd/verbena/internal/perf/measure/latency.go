// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
)

// latency measures messages of a size, one at a time.
func (e *end) latency(ctx context.Context, size int) (Row, error) {
	run, ways := e.pingSend, 2
	switch {
	case e.conn != nil && e.Op.oneSided():
		run, ways = e.connPull, 1
	case e.conn != nil && e.Op.received():
		run = e.connPing
	case e.Op.oneSided():
		run, ways = e.pull, 1
	case e.Op == Write:
		run = e.pingWrite
	}
	posted := make([]time.Duration, 0, min(e.Iterations, mostRecorded))
	before := cpuTime()
	posted, err := run(ctx, size, posted)
	if errors.Is(err, errExpired) && len(posted) > 1 {
		err = nil
	}
	if err != nil {
		return Row{}, fmt.Errorf("message %d of %d bytes: %w", len(posted), size, err)
	}
	used := cpuTime() - before
	r := latencyRow(size, posted, ways)
	r.CPU = microseconds(used) / float64(len(posted))
	return r, nil
}

// mostRecorded is the initial capacity for times in a test with a duration.
const mostRecorded = 1 << 20

// mark records the time at which a message is posted. In a test with a
// duration, the first call begins the test, and mark returns an error when the
// duration is over.
func (e *end) mark(posted []time.Duration, c clock) ([]time.Duration, error) {
	now := c.now()
	if e.Duration > 0 {
		switch {
		case e.deadline.IsZero():
			e.deadline = c.start.Add(now + e.Duration)
		case !c.start.Add(now).Before(e.deadline):
			return posted, errExpired
		}
	}
	return append(posted, now), nil
}

// pull measures operations in which the peer's program does nothing.
func (e *end) pull(ctx context.Context, size int, posted []time.Duration) ([]time.Duration, error) {
	send, err := e.batch(0, 1, size, ibverbs.SendSignaled)
	if err != nil {
		return posted, err
	}
	wcs := make([]ibverbs.WC, 1)
	c := newClock()
	for range e.Iterations {
		if posted, err = e.mark(posted, c); err != nil {
			return posted, err
		}
		if err := e.turn(ctx, nil, send, e.sends, wcs, 1); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// pingSend sends messages that the peer answers, or answers the peer's. The
// client sends first. In each turn, an end waits until its message is sent and
// the peer's next message has arrived.
func (e *end) pingSend(ctx context.Context, size int, posted []time.Duration) ([]time.Duration, error) {
	send, err := e.batch(0, 1, size, ibverbs.SendSignaled)
	if err != nil {
		return posted, err
	}
	recv, err := e.receives(0, 1, size)
	if err != nil {
		return posted, err
	}
	ahead, err := e.receives(0, min(e.Receives, e.Iterations), size)
	if err != nil {
		return posted, err
	}
	if _, err := e.qp.PostRecv(ahead); err != nil {
		return posted, err
	}
	if err := e.control.sync(); err != nil {
		return posted, err
	}
	receives := ahead.Len()
	wcs := make([]ibverbs.WC, 2)
	if !e.control.isClient {
		if err := e.turn(ctx, nil, nil, e.recvs, wcs, 1); err != nil {
			return posted, err
		}
	}
	c := newClock()
	for i := range e.Iterations {
		again := recv
		if i == 0 && e.control.isClient || receives == e.Iterations {
			again = nil // enough receives are posted for the remaining messages
		} else {
			receives++
		}
		completions := 2
		if i == e.Iterations-1 && !e.control.isClient {
			completions = 1 // the client's last message has already arrived
		}
		if posted, err = e.mark(posted, c); err != nil {
			return posted, err
		}
		if err := e.turn(ctx, again, send, e.sends, wcs, completions); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// pingWrite writes messages into the peer's memory and polls this end's memory
// for the peer's messages, whose last byte is a counter. The server writes
// first.
func (e *end) pingWrite(ctx context.Context, size int, posted []time.Duration) ([]time.Duration, error) {
	send, err := e.batch(0, 1, size, ibverbs.SendSignaled)
	if err != nil {
		return posted, err
	}
	memory := e.mr.Bytes()
	out, in := &memory[size-1], &memory[e.half+size-1]
	wcs := make([]ibverbs.WC, 1)
	c := newClock()
	come := 0
	for i := range e.Iterations {
		if i > 0 || e.control.isClient {
			come++
			if err := e.watch(ctx, in, byte(come)); err != nil {
				return posted, err
			}
		}
		if i == 0 && !e.control.isClient {
			posted = append(posted, c.now()) // the test begins with the client's answer, which may not have arrived yet
		} else if posted, err = e.mark(posted, c); err != nil {
			return posted, err
		}
		*out = byte(i + 1)
		if e.conn != nil {
			err = e.transfer(ctx, size)
		} else {
			err = e.turn(ctx, nil, send, e.sends, wcs, 1)
		}
		if err != nil {
			return posted, err
		}
	}
	if come < e.Iterations {
		return posted, e.watch(ctx, in, byte(e.Iterations))
	}
	return posted, nil
}

// watch waits until a byte that the device writes has a value.
func (e *end) watch(ctx context.Context, b *byte, value byte) error {
	const looks = 1 << 16 // reads between two calls that let the runtime schedule, which otherwise sends a signal
	for {
		for range looks {
			if load(b) == value {
				return nil
			}
		}
		runtime.Gosched()
		if err := e.hopeless(ctx); err != nil {
			return err
		}
	}
}

// load reads a byte, each time it is called.
//
//go:noinline
func load(b *byte) byte { return *b }
