// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// own holds what the caller of a connection with a PreparedQP makes.
type own struct {
	channel *ibverbs.CompChannel
	cq      *ibverbs.CQ
	mr      *ibverbs.MR
	ended   chan error
	setup   atomic.Bool
}

func newOwn() *own { return &own{ended: make(chan error, 2)} }

func (o *own) config() *rdmacm.Config {
	return &rdmacm.Config{
		Queues: &rdmacm.PreparedQP{Prepare: o.prepare},
		Setup: func(c *rdmacm.Conn) error {
			o.setup.Store(c.QP() != nil)
			return nil
		},
		Ended:     func(err error) { o.ended <- err },
		KeepAlive: 1,
	}
}

func (o *own) prepare(c *rdmacm.Conn) (_ *ibverbs.QP, err error) {
	device := c.PD().Device()
	if o.channel, err = device.CreateCompChannel(); err != nil {
		return nil, err
	}
	if o.cq, err = device.CreateCQ(ibverbs.CQConfig{CompQueue: 4, Channel: o.channel}); err != nil {
		return nil, err
	}
	if o.mr, err = c.Alloc(64, ibverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	qp, err := c.ID().CreateQP(c.PD(), ibverbs.QPConfig{SendCQ: o.cq, RecvCQ: o.cq, SendQueue: 2, RecvQueue: 2})
	if err != nil {
		return nil, err
	}
	batch, err := ibverbs.NewRecvBatch(1, 1)
	if err == nil {
		err = batch.Recv(7, o.mr.Sub(0, 32))
	}
	if err == nil {
		_, err = qp.PostRecv(batch)
	}
	return qp, err
}

func (o *own) close(t *testing.T) {
	t.Helper()
	require.NoError(t, o.cq.Close())
	require.NoError(t, o.channel.Close())
}

// The queue pair of Prepare uses the caller's completion queue, where its
// completions arrive. The transfer methods of Conn are refused.
func TestPrepare(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	a, b := newOwn(), newOwn()
	result := acceptOne(ctx, ln, b.config())
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(a.config()))
	require.NoError(t, err)
	accepted := <-result
	require.NoError(t, accepted.err)
	server := accepted.conn
	require.True(t, a.setup.Load() && b.setup.Load())

	copy(a.mr.Bytes()[32:], "hello")
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, batch.Send(3, ibverbs.SendSignaled, a.mr.Sub(32, 5)))
	_, err = client.QP().PostSend(batch)
	require.NoError(t, err)
	wc, err := a.cq.WaitOne(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 3, wc.ID())
	wc, err = b.cq.WaitOne(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 7, wc.ID())
	require.Equal(t, "hello", string(b.mr.Bytes()[:wc.ByteLen()]))

	for name, f := range map[string]func() error{
		"Send":        func() error { return client.Send(ctx, a.mr.All()) },
		"Read":        func() error { return client.Read(ctx, a.mr.All(), ibverbs.RemoteBuffer{}) },
		"PostRecv":    func() error { _, err := client.PostRecv(a.mr.All()); return err },
		"Recv":        func() error { _, err := client.Recv(ctx, a.mr.All()); return err },
		"NewReceiver": func() error { _, err := client.NewReceiver(1); return err },
		"Post":        func() error { return client.Post(ctx, new(rdmacm.Transfer), batch) },
	} {
		require.ErrorIs(t, f(), syscall.EINVAL, name)
	}
	require.NoError(t, client.Err())

	require.NoError(t, client.Close())
	require.ErrorIs(t, <-a.ended, os.ErrClosed)
	require.ErrorIs(t, <-b.ended, syscall.ECONNRESET)
	require.NoError(t, server.Close())
	require.Empty(t, b.ended, "once")
	a.close(t)
	b.close(t)
}

// The queue pair of Prepare may be on another protection domain and use shared
// receives. Flushed is called when it takes no more requests, and finds the
// last completions.
func TestPrepareShares(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.SRQs)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	device := find(t, d.Name)
	pd, cq := ownQueues(t, d.Name, 16)
	srq, err := pd.CreateSRQ(ibverbs.SRQConfig{RecvQueue: 4})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srq.Close()) })
	mr, err := pd.Alloc(64, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mr.Close()) })
	require.Equal(t, device, pd.Device())

	var qp *ibverbs.QP
	flushed := 0
	// With a protection domain of its own, the accepting end is in no forced
	// pool. Pools post receives.
	result := acceptOne(ctx, ln, &rdmacm.Config{PD: pd})
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(&rdmacm.Config{
		Queues: &rdmacm.PreparedQP{
			Prepare: func(c *rdmacm.Conn) (_ *ibverbs.QP, err error) {
				require.NotEqual(t, pd, c.PD(), "not yet")
				qp, err = c.ID().CreateQP(pd, ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 2, SRQ: srq})
				return qp, err
			},
			Flushed: func() {
				flushed++
				state, err := qp.State()
				require.NoError(t, err)
				require.Equal(t, ibverbs.QPStateError, state)
				wc, err := cq.WaitOne(ctx)
				require.EqualValues(t, 9, wc.ID())
				require.ErrorIs(t, err, ibverbs.WCFlushed)
			},
		},
	}))

	require.NoError(t, err)
	accepted := <-result
	require.NoError(t, accepted.err)
	require.Equal(t, pd, client.PD())
	batch, err := ibverbs.NewSendBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, batch.Send(9, ibverbs.SendSignaled, mr.Sub(0, 5)))
	_, err = qp.PostSend(batch) // there is no receive
	require.NoError(t, err)
	require.NoError(t, client.Close())
	require.Equal(t, 1, flushed)
	require.NoError(t, accepted.conn.Close())
	require.NoError(t, client.Close(), "again")
	require.Equal(t, 1, flushed)
}

// While Flushed runs, Close fails. After AwaitFlushed it waits for the first
// Close instead.
func TestCloseBesideFlushed(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	o, running, goOn := newOwn(), make(chan struct{}), make(chan struct{})
	config := o.config()
	config.Queues = &rdmacm.PreparedQP{Prepare: o.prepare, Flushed: func() {
		close(running)
		<-goOn
	}}
	result := acceptOne(ctx, ln, nil)
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), config)
	require.NoError(t, err)
	server := cmtest.Take(t, result, "a connection")
	require.NoError(t, server.err)

	closed := make(chan error, 2)
	go func() { closed <- client.Close() }()
	cmtest.Take(t, running, "the call of Flushed")
	require.ErrorIs(t, client.Close(), syscall.EBUSY)
	go func() {
		sealed.Open(client.Internals()).AwaitFlushed()
		closed <- client.Close()
	}()
	close(goOn)
	for range 2 {
		require.NoError(t, cmtest.Take(t, closed, "the end of Close"))
	}
	require.NoError(t, server.conn.Close())
	o.close(t)
}

// The result of Prepare is checked. After a failure everything is closed except
// the caller's objects.
func TestPrepareFails(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)
	mine := errors.New("mine")
	for name, c := range map[string]struct {
		prepare func(o *own, c *rdmacm.Conn) (*ibverbs.QP, error)
		want    error
	}{
		"before the queue pair": {func(*own, *rdmacm.Conn) (*ibverbs.QP, error) { return nil, mine }, mine},
		"after the queue pair": {func(o *own, c *rdmacm.Conn) (*ibverbs.QP, error) {
			qp, err := o.prepare(c)
			return qp, errors.Join(err, mine)
		}, mine},
		"no queue pair": {func(*own, *rdmacm.Conn) (*ibverbs.QP, error) { return nil, nil }, syscall.EINVAL},
		"not returned": {func(o *own, c *rdmacm.Conn) (*ibverbs.QP, error) {
			_, err := o.prepare(c)
			return nil, err
		}, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwn()
			config := o.config()
			config.Queues = &rdmacm.PreparedQP{Prepare: func(conn *rdmacm.Conn) (*ibverbs.QP, error) { return c.prepare(o, conn) }}
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(config))
			require.ErrorIs(t, err, c.want)
			require.False(t, o.setup.Load())
			if o.cq != nil {
				o.close(t)
			}
		})
	}
}
