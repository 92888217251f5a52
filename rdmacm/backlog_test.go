// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// listenForOne returns a listener that has no room for a second request, and
// the result of the dial whose request it holds.
func listenForOne(t *testing.T) (ln *rdmacm.Listener, first <-chan error) {
	t.Helper()
	d := needDevice(t)
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), &rdmacm.ListenConfig{Backlog: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	first = inBackground(func() error { return dialAndClose(ctx, ln, nil) })
	soon(t, "the first request", func() bool { return rdmacm.Waiting(ln) == 1 })
	return ln, first
}

func dialAndClose(ctx context.Context, ln *rdmacm.Listener, config *rdmacm.Config) error {
	conn, err := rdmacm.Dial(ctx, ln.Addr().String(), inPool(config))
	if err != nil {
		return err
	}
	return conn.Close()
}

// A dial that finds the backlog full tries again until there is room.
func TestBacklog(t *testing.T) {
	ln, first := listenForOne(t)
	attempts := make(chan struct{}, 1000)
	second := inBackground(func() error {
		return dialAndClose(bounded(t), ln, &rdmacm.Config{Setup: func(*rdmacm.Conn) error {
			attempts <- struct{}{}
			return nil
		}})
	})
	for range 3 {
		cmtest.Take(t, attempts, "an attempt of the second dial")
	}
	require.Empty(t, first)
	require.Empty(t, second, "no dial is refused")
	for _, dialed := range []<-chan error{first, second} {
		a := cmtest.Take(t, acceptOne(bounded(t), ln, nil), "the accepted connection")
		require.NoError(t, a.err)
		require.NoError(t, cmtest.Take(t, dialed, "the dial"))
		require.NoError(t, a.conn.Close())
	}
}

// A dial gives up in the end and says why. It does not try again where the
// peer's program has refused or no program listens.
func TestBacklogStaysFull(t *testing.T) {
	ln, first := listenForOne(t)
	address := ln.Addr().String()
	limit := 2 * time.Second
	if !testdevice.Soft() {
		limit = 10 * time.Second // in an emulated guest
	}
	dial := func() (err, other error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		ended := inBackground(func() error { // while the other waits, too
			_, err := rdmacm.Dial(ctx, address, inPool(nil))
			return err
		})
		_, err = rdmacm.Dial(bounded(t), address, inPool(&rdmacm.Config{HandshakeTimeout: limit}))
		return err, cmtest.Take(t, ended, "the end of the context")
	}
	err, other := dial()
	for !(errors.Is(err, rdmacm.ErrBacklogFull) && errors.Is(other, rdmacm.ErrBacklogFull)) && limit < patience/4 {
		limit *= 2 // it must have room for an attempt, on a busy machine too
		err, other = dial()
	}
	require.ErrorIs(t, err, rdmacm.ErrBacklogFull)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.NotErrorIs(t, err, syscall.ECONNREFUSED, "no program has refused")
	require.EqualError(t, err, "dial "+address+": the listener's backlog is full, and has been for "+limit.String()+" (Config.HandshakeTimeout): connection timed out")

	require.ErrorIs(t, other, rdmacm.ErrBacklogFull)
	require.ErrorIs(t, other, context.DeadlineExceeded)
	require.ErrorIs(t, other, os.ErrDeadlineExceeded)

	request, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	require.NoError(t, request.Reject([]byte("no")))
	err = cmtest.Take(t, first, "the refusal")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NotErrorIs(t, err, rdmacm.ErrBacklogFull)

	require.NoError(t, ln.Close())
	_, err = rdmacm.Dial(bounded(t), address, inPool(nil))
	var rejected *rdmacm.RejectedError
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, rdmacm.ReasonNoListener, rejected.Reason)
}

// A listener without room for datagrams is asked again, too.
func TestDatagramBacklog(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams)
	ctx := bounded(t)
	ln, err := rdmacm.ListenDatagram(ctx, netip.AddrPortFrom(d.IPv4, 0).String(), &rdmacm.ListenConfig{Backlog: 1})
	require.NoError(t, err)
	dial := func() <-chan error {
		return inBackground(func() error {
			conn, err := rdmacm.DialDatagram(ctx, ln.Addr().String(), nil)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	first := dial()
	soon(t, "the first request", func() bool { return rdmacm.WaitingDatagrams(ln) == 1 })
	// The first answer may come after the context has ended.
	for within := 100 * time.Millisecond; !errors.Is(err, rdmacm.ErrBacklogFull); within *= 2 {
		require.NoError(t, ctx.Err(), "no answer of the listener")
		brief, cancel := context.WithTimeout(ctx, within)
		_, err = rdmacm.DialDatagram(brief, ln.Addr().String(), nil)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	second := dial()
	served := inBackground(func() error {
		for { // there may be a request of the dial that has ended, too
			request, err := ln.Accept(ctx)
			if err != nil {
				return err
			}
			conn, err := request.Accept(ctx, nil)
			if err != nil {
				return err
			}
			if err := conn.Close(); err != nil {
				return err
			}
		}
	})
	require.NoError(t, cmtest.Take(t, first, "the first dial"))
	require.NoError(t, cmtest.Take(t, second, "the second dial"))
	require.NoError(t, ln.Close())
	require.ErrorIs(t, cmtest.Take(t, served, "the end of the server"), os.ErrClosed)
}

// An ID gets what C's programs get: a rejection that looks like any program's.
func TestRejectionOfFullBacklog(t *testing.T) {
	ln, first := listenForOne(t)
	client := newEnd(t)
	client.resolve(ln.Addr())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: newQP()}))
	ev := next(t, client.ch, rdmacm.EventRejected)
	require.Equal(t, int(rdmacm.ReasonConsumer), ev.Status)
	require.Len(t, ev.PrivateData, maxRejectData)
	require.Zero(t, ev.PrivateData[0], "C prints nothing")
	require.ErrorIs(t, ev.Err(), syscall.ECONNREFUSED)
	require.ErrorIs(t, ev.Err(), rdmacm.ErrBacklogFull)
	require.EqualError(t, ev.Err(), "connection rejected: the listener's backlog is full")
	require.NoError(t, ln.Close())
	require.ErrorIs(t, cmtest.Take(t, first, "the refusal"), syscall.ECONNREFUSED)
}

// Accept gives a handshake up for another one when the cause of the context's
// end says so. The peer then tries again.
func TestAcceptMakesRoom(t *testing.T) {
	d := needDevice(t)
	ln, err := rdmacm.Listen(bounded(t), netip.AddrPortFrom(d.IPv4, 0).String(), nil)
	require.NoError(t, err)
	attempts := 0
	dialed := inBackground(func() error {
		return dialAndClose(bounded(t), ln, &rdmacm.Config{Setup: func(*rdmacm.Conn) error { attempts++; return nil }})
	})
	ctx, shed := context.WithCancelCause(bounded(t))
	request, err := ln.Accept(ctx)
	require.NoError(t, err)
	shed(rdmacm.ErrBacklogFull)
	_, err = request.Accept(ctx, inPool(nil))
	require.ErrorIs(t, err, rdmacm.ErrBacklogFull, "before Accept")

	ctx, shed = context.WithCancelCause(bounded(t))
	request, err = ln.Accept(ctx)
	require.NoError(t, err)
	_, err = request.Accept(ctx, inPool(&rdmacm.Config{Setup: func(*rdmacm.Conn) error { shed(rdmacm.ErrBacklogFull); return nil }}))
	require.ErrorIs(t, err, rdmacm.ErrBacklogFull, "before the answer")

	a := cmtest.Take(t, acceptOne(bounded(t), ln, nil), "the connection")
	require.NoError(t, a.err)
	require.NoError(t, cmtest.Take(t, dialed, "the dial"))
	require.Equal(t, 3, attempts)
	require.NoError(t, a.conn.Close())
	require.NoError(t, ln.Close())
}

// halfOpen returns a client that waits in the middle of a handshake, and the
// server's side of the handshake.
func halfOpen(t *testing.T) (client *end, id *rdmacm.ID, shed context.CancelCauseFunc, accepted <-chan accepted) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	client = newEnd(t)
	client.resolve(ln.Addr())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: newQP()}))
	request, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	ctx, shed := context.WithCancelCause(bounded(t))
	return client, request.Event().ID, shed, acceptRequest(ctx, request)
}

func acceptRequest(ctx context.Context, request *rdmacm.Request) <-chan accepted {
	result := make(chan accepted, 1)
	go func() {
		conn, err := request.Accept(ctx, inPool(nil))
		result <- accepted{conn: conn, err: err}
	}()
	return result
}

// Accept gives up a handshake that the peer does not complete, and the peer
// learns of it.
func TestAcceptGivesUpHalfOpen(t *testing.T) {
	client, _, shed, result := halfOpen(t)
	next(t, client.ch, rdmacm.EventConnectResponse)
	shed(rdmacm.ErrBacklogFull)
	require.ErrorIs(t, cmtest.Take(t, result, "the end of Accept").err, rdmacm.ErrBacklogFull)
	refused := next(t, client.ch, rdmacm.EventRejected).Err()
	require.ErrorIs(t, refused, syscall.ECONNREFUSED)
	require.Equal(t, testdevice.UserSpace(), errors.Is(refused, rdmacm.ErrBacklogFull), "the kernel's rejection has no mark")
}

// A handshake that the peer has completed stays, although Accept has not seen
// the event yet.
func TestAcceptKeepsWhatIsComplete(t *testing.T) {
	if needDevice(t); !testdevice.Soft() {
		t.Skip("the kernel does not tell without rejecting")
	}
	client, id, shed, result := halfOpen(t)
	next(t, client.ch, rdmacm.EventConnectResponse)
	// A later request has arrived, so earlier messages have, too.
	ln, later := listening(t, needDevice(t).IPv4), newEnd(t)
	later.resolve(ln.id.LocalAddr())
	release := sync.OnceFunc(rdmacm.HoldEvents(id))
	defer release()
	require.NoError(t, client.id.Establish())
	require.NoError(t, later.id.Connect(rdmacm.ConnParam{QPNum: newQP()}))
	require.NoError(t, next(t, ln.ch, rdmacm.EventConnectRequest).ID.Close())
	shed(rdmacm.ErrBacklogFull)
	release()
	a := cmtest.Take(t, result, "the connection")
	require.NoError(t, a.err)
	require.NoError(t, a.conn.Err())
	require.NoError(t, a.conn.Close())
}

// The first message of a client completes its handshake at the server if the
// confirmation is lost.
func TestDataCompletesHandshake(t *testing.T) {
	d := needDevice(t)
	if !testdevice.Soft() {
		t.Skip("needs the device in user space, which loses packets on demand")
	}
	for name, pool := range map[string]*rdmacm.Pool{"own queues": nil, "pool": new(rdmacm.Pool)} {
		t.Run(name, func(t *testing.T) {
			config := &rdmacm.Config{MessageSize: 16, HandshakeTimeout: cmtest.Patience}
			if pool != nil {
				config.Queues = pool
			}
			cmtest.Have(t, inPool(config))
			ln := listenOn(t, d.IPv4)
			server := acceptOne(bounded(t), ln, config)
			testdevice.LoseReady(t)
			client, err := rdmacm.Dial(bounded(t), ln.Addr().String(), inPool(nil))
			require.NoError(t, err)
			hello := alloc(t, client, 5)
			sent := inBackground(func() error { return client.Send(bounded(t), hello.All()) })
			a := cmtest.Take(t, server, "the accepted connection")
			require.NoError(t, a.err)
			message, err := a.conn.Receive(bounded(t))
			require.NoError(t, err)
			require.Len(t, message.Data, 5)
			require.NoError(t, cmtest.Take(t, sent, "the end of the send"))
			require.NoError(t, client.Close())
			require.NoError(t, a.conn.Close())
		})
	}
}
