// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// mostReceived is the maximum number of bytes in all receives of a connection.
const mostReceived = 64 << 20

// connectConn connects with an rdmacm.Conn, whose methods do the test. The peer
// may use a queue pair with rdma_cm instead.
func (e *end) connectConn(ctx context.Context, where Where) error {
	if err := e.fitConn(where); err != nil {
		return err
	}
	config := &rdmacm.Config{
		SendQueue: e.Depth, RecvQueue: 1, MaxInline: e.Inline, ReadDepth: 1,
		Setup: func(c *rdmacm.Conn) (err error) {
			e.conn, e.qp = c, c.QP()
			e.mr, err = c.Alloc(2*e.half, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteAtomic)
			if err == nil && e.Op.received() {
				e.receiver, err = c.NewReceiver(slices.Max(e.Sizes))
			}
			return err
		},
	}
	if e.Op.received() {
		config.RecvQueue = max(1, min(e.Receives, mostReceived/slices.Max(e.Sizes)))
	}
	if e.Events {
		config.Spin = -1
	}
	var conn *rdmacm.Conn
	if where.Server == "" {
		ln, err := rdmacm.Listen(ctx, local(e.control, where.TCPPort).String(), &rdmacm.ListenConfig{Backlog: 1})
		if err != nil {
			return err
		}
		e.close = append(e.close, ln.Close)
		if err := e.meet(); err != nil { // the client may connect now
			return err
		}
		request, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		if conn, err = request.Accept(ctx, config); err != nil {
			return err
		}
	} else {
		if err := e.meet(); err != nil {
			return err
		}
		var err error
		if conn, err = rdmacm.Dial(ctx, remote(e.control, where.TCPPort).String(), config); err != nil {
			return err
		}
	}
	e.close = append(e.close, conn.Close)
	e.offer()
	_, err := e.agree()
	return err
}

// fitConn fits the test to the device that has the address of the control
// connection, as that has the rdmacm.Conn.
func (e *end) fitConn(where Where) error {
	if err := e.open(where); err != nil {
		return err
	}
	pd, err := e.device.AllocPD()
	if err != nil {
		return err
	}
	return errors.Join(e.fit(e.device, pd), pd.Close())
}

// connPull is like pull, on an rdmacm.Conn.
func (e *end) connPull(ctx context.Context, size int, posted []time.Duration) ([]time.Duration, error) {
	c := newClock()
	for range e.Iterations {
		posted = append(posted, c.now())
		if err := e.transfer(ctx, size); err != nil {
			return posted, err
		}
	}
	return posted, nil
}

// transfer does the operation once and waits for it.
func (e *end) transfer(ctx context.Context, size int) error {
	mine, theirs := e.mine(size), e.peerBuffer(0, size)
	switch e.Op {
	case Send:
		return e.conn.Send(ctx, mine)
	case Write:
		return e.conn.Write(ctx, theirs, mine)
	case WriteImm:
		return e.conn.WriteImm(ctx, theirs, uint32(size), mine)
	case Read:
		return e.conn.Read(ctx, mine, theirs)
	case FetchAdd:
		return e.conn.FetchAdd(ctx, theirs, 1, mine)
	default:
		return e.conn.CompareSwap(ctx, theirs, 0, 0, mine)
	}
}

// connPing is like pingSend, on an rdmacm.Conn.
func (e *end) connPing(ctx context.Context, size int, posted []time.Duration) ([]time.Duration, error) {
	if err := e.control.sync(); err != nil {
		return posted, err
	}
	if !e.control.isClient {
		if _, err := e.receiver.Next(ctx); err != nil {
			return posted, err
		}
	}
	batch, err := e.batch(0, 1, size, 0)
	if err != nil {
		return posted, err
	}
	c := newClock()
	for range e.Iterations - 1 {
		posted = append(posted, c.now())
		if err := e.conn.Post(ctx, nil, batch); err != nil { // the peer's answer shows that the message has arrived
			return posted, err
		}
		if _, err := e.receiver.Next(ctx); err != nil {
			return posted, err
		}
	}
	posted = append(posted, c.now())
	if err := e.transfer(ctx, size); err != nil {
		return posted, err
	}
	if e.control.isClient { // the server has received the client's last message above
		_, err = e.receiver.Next(ctx)
	}
	return posted, err
}

// connSendAll is like sendAll, on an rdmacm.Conn. It posts each list with Post.
// Where sendAll asks for a completion, connSendAll passes a Transfer.
func (e *end) connSendAll(ctx context.Context, size int) (Row, error) {
	batch, err := e.batch(0, e.List, size, 0)
	if err != nil {
		return Row{}, err
	}
	posted, completed := make([]time.Duration, 0, e.Iterations), make([]completion, 0, e.Iterations)
	transfers := make([]rdmacm.Transfer, e.Depth/e.List+1)
	var marks []int // number of messages posted up to each transfer in flight; the last transfer is the last element of used
	used, done := 0, 0
	c, before := newClock(), cpuTime()
	for done < e.Iterations {
		if len(posted) == e.Iterations || len(posted)-done+e.List > e.Depth {
			if err := transfers[(used-len(marks))%len(transfers)].Wait(ctx); err != nil {
				return Row{}, fmt.Errorf("message %d of %d bytes: %w", done, size, err)
			}
			done, marks = marks[0], marks[1:]
			completed = append(completed, completion{done, c.now()})
			continue
		}
		now := c.now()
		for range e.List {
			posted = append(posted, now)
		}
		var t *rdmacm.Transfer
		if len(posted)%e.Moderation == 0 || len(posted) == e.Iterations {
			t = &transfers[used%len(transfers)]
			used, marks = used+1, append(marks, len(posted))
		}
		if err := e.conn.Post(ctx, t, batch); err != nil {
			return Row{}, fmt.Errorf("message %d of %d bytes: %w", len(posted), size, err)
		}
	}
	cpu := cpuTime() - before
	r := bandwidthRow(size, posted, completed)
	r.CPU = microseconds(cpu) / float64(len(posted))
	return r, nil
}

// connReceiveAll is like receiveAll, on an rdmacm.Conn.
func (e *end) connReceiveAll(ctx context.Context, size int, ready func() error) (Row, error) {
	if err := ready(); err != nil {
		return Row{}, err
	}
	c, before := newClock(), cpuTime()
	for come := range e.Iterations {
		if _, err := e.receiver.Next(ctx); err != nil {
			return Row{}, fmt.Errorf("message %d of %d bytes: %w", come, size, err)
		}
	}
	r := receivedRow(size, e.Iterations, c.now())
	r.CPU = microseconds(cpuTime()-before) / float64(e.Iterations)
	return r, nil
}
