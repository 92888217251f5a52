// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
)

// Run connects to the peer, or waits for the peer to connect, and does the
// test.
func Run(ctx context.Context, t *Test, where Where, tell Tell) error {
	conn, err := reach(ctx, where, tell.Ready)
	if err != nil {
		return err
	}
	return RunOver(ctx, conn, where.Server != "", t, where, tell)
}

// RunOver is like Run, but the ends agree over an existing connection, which
// RunOver closes. One end must be the client. The server's address and the TCP
// port in where are not used, unless where has RDMACM or Conn set.
func RunOver(ctx context.Context, conn net.Conn, isClient bool, t *Test, where Where, tell Tell) (err error) {
	row := tell.Row
	c, ctx := newControl(ctx, conn, isClient)
	c.plan = newPlan(t, where)
	defer func() { err = errors.Join(err, c.Close()) }()
	e, err := newEnd(ctx, t, where, c)
	if err != nil {
		return err
	}
	e.progress = tell.Progress
	defer func() {
		if err != nil {
			c.hangUp()
		}
		err = errors.Join(err, e.Close())
	}()
	if err := e.agreed(); err != nil {
		return err
	}
	switch {
	case !t.Bandwidth && t.Op.oneSided():
		err = e.runPull(ctx, row)
	case !t.Bandwidth:
		err = e.runPing(ctx, row)
	case t.Op.received():
		err = e.runStream(ctx, row)
	case t.Both:
		err = e.runBothWays(ctx, row)
	default:
		err = e.runWrites(ctx, row)
	}
	err = e.cause(err)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// cause returns why a test has failed with err: the removal of the device, if
// there was one. Otherwise, if a request was flushed, it is the error of
// another request, whose completion may be in the other queue, or the end of
// the connection.
func (e *end) cause(err error) error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, ibverbs.WCFlushed):
		return cmp.Or(e.removal(), err)
	}
	for _, cq := range []*ibverbs.CQ{e.sends, e.recvs} {
		if cq == nil { // of an rdmacm.Conn, which knows the cause
			continue
		}
		var wcs [pollBatch]ibverbs.WC
		for n, _ := cq.Poll(wcs[:]); n > 0; n, _ = cq.Poll(wcs[:]) {
			for i := range wcs[:n] {
				if failed := wcs[i].Err(); failed != nil && !errors.Is(failed, ibverbs.WCFlushed) {
					return failed
				}
			}
		}
	}
	return peers.Cause(e.life, err)
}

// Tell holds the functions that Run calls.
type Tell struct {
	// Ready is called when the server waits for the client, and by the client
	// when it has found the server.
	Ready func()
	// Row is called with the result for each size. If only the peer
	// measures in a test, Row is called with the peer's result for the last
	// size.
	Row func(Row)
	// Progress, if not nil, is called now and then by an end that measures
	// bandwidth.
	Progress Progress
}

// Progress is called with the time for which a test has been running, and the
// number of messages of a size that are done.
type Progress func(elapsed time.Duration, size, done int)

// reach makes the control connection. The server calls ready before it waits.
func reach(ctx context.Context, where Where, ready func()) (net.Conn, error) {
	port := strconv.Itoa(where.TCPPort)
	if where.Server != "" {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(where.Server, port))
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w; does verbena perf run there, with the same test and without a host?", err)
		}
		if err == nil {
			ready()
		}
		return conn, err
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	ready()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	conn, err := ln.Accept()
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	return conn, errors.Join(err, ln.Close())
}

func (e *end) runPull(ctx context.Context, row func(Row)) error {
	if e.control.isClient {
		for _, size := range e.Sizes {
			r, err := e.latency(ctx, size)
			if err != nil {
				return err
			}
			row(r)
		}
	}
	return e.control.finish()
}

func (e *end) runPing(ctx context.Context, row func(Row)) error {
	for _, size := range e.Sizes {
		r, err := e.latency(ctx, size)
		if err != nil {
			return err
		}
		row(r)
	}
	if e.Op != Write {
		return e.control.finish()
	}
	// The peer's last write completes only while this end is open. The
	// server leaves when the client has said that it is done, and the
	// client leaves when the server has left.
	if e.control.isClient {
		e.control.done()
	}
	select {
	case <-e.control.gone:
	case <-ctx.Done():
	}
	return nil
}

func (e *end) runStream(ctx context.Context, row func(Row)) error {
	for _, size := range e.Sizes {
		run := func() (Row, error) { return e.receiveAll(ctx, size, e.control.sync) }
		switch {
		case e.Both:
			run = func() (Row, error) { return e.exchangeAll(ctx, size, true, e.control.sync) }
		case e.control.isClient:
			run = func() (Row, error) {
				if err := e.control.sync(); err != nil {
					return Row{}, err
				}
				return e.sendAll(ctx, size)
			}
		}
		r, err := run()
		if err != nil {
			return err
		}
		if e.Both && e.Duration == 0 { // otherwise the received messages are counted already
			theirs, err := e.control.report(r)
			if err != nil {
				return err
			}
			r = r.plus(theirs)
		}
		row(r)
		if len(e.Sizes) > 1 { // as perftest does
			if err := e.control.sync(); err != nil {
				return err
			}
		}
	}
	return e.control.finish()
}

// runBothWays makes both ends access the other end's memory at the same time.
func (e *end) runBothWays(ctx context.Context, row func(Row)) error {
	for _, size := range e.Sizes {
		if err := e.control.sync(); err != nil {
			return err
		}
		mine, err := e.sendAll(ctx, size)
		if err != nil {
			return err
		}
		if len(e.Sizes) > 1 { // as perftest does
			if err := e.control.sync(); err != nil {
				return err
			}
		}
		theirs, err := e.control.report(mine)
		if err != nil {
			return err
		}
		row(mine.plus(theirs))
	}
	return e.control.finish()
}

func (e *end) runWrites(ctx context.Context, row func(Row)) error {
	last := Row{}
	if e.control.isClient {
		for _, size := range e.Sizes {
			var err error
			if last, err = e.sendAll(ctx, size); err != nil {
				return err
			}
			row(last)
		}
	}
	if err := e.control.sync(); err != nil {
		return err
	}
	theirs, err := e.control.report(last)
	if err != nil {
		return err
	}
	if !e.control.isClient {
		row(theirs)
	}
	return e.control.finish()
}
