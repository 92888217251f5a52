package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestPeerCloses(t *testing.T) {
	d := needDevice(t)
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			client, server := connect(t, d.IPv4,
				&rdmacm.Config{ManualQP: mode.manualClient}, &rdmacm.Config{ManualQP: mode.manualServer})
			mr := alloc(t, server, 64)
			ctx := bounded(t)
			pending, err := server.PostRecv(mr.All())
			require.NoError(t, err)
			result := make(chan error)
			go func() {
				_, err := pending.Wait(ctx)
				result <- err
			}()

			require.NoError(t, client.Close())
			check := func(err error) {
				t.Helper()
				var event *rdmacm.EventError
				require.ErrorAs(t, err, &event)
				require.Equal(t, rdmacm.EventDisconnected, event.Type)
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NotErrorIs(t, err, os.ErrClosed)
			}
			check(<-result)
			<-server.Done()
			check(server.Err())
			_, err = server.PostRecv(mr.All())
			check(err)
			check(server.Send(ctx, mr.All()))
			_, err = pending.Wait(ctx)
			check(err)
			require.NoError(t, server.Close())
			check(server.Err())
		})
	}
}

func TestCloseWakesOperations(t *testing.T) {
	const waiters = 8
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, &rdmacm.Config{SendQueue: 2}, nil)
	mr := alloc(t, client, 64)
	ctx := bounded(t)
	results := make(chan error, 2*waiters)
	for range waiters {
		pending, err := client.PostRecv(mr.All())
		require.NoError(t, err)
		go func() {
			_, err := pending.Wait(ctx)
			results <- err
		}()
		// The peer has no receive posted: sends stay under way, or wait for room.
		go func() { results <- client.Send(ctx, mr.Sub(0, 8)) }()
	}
	start := time.Now()
	require.NoError(t, client.Close())
	for range 2 * waiters {
		err := <-results
		require.ErrorIs(t, err, os.ErrClosed)
		require.NotErrorIs(t, err, syscall.ECONNRESET)
	}
	t.Logf("closed, and %d waiters woken, in %v", 2*waiters, time.Since(start))
	_, err := client.PostRecv(mr.All())
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, client.Send(ctx), os.ErrClosed)
	_, err = client.Alloc(64, 0)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorIs(t, client.Err(), os.ErrClosed)
	require.Nil(t, mr.Bytes(), "closed with the connection")
}

func TestCloseTwiceAndConcurrently(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	var group sync.WaitGroup
	for _, conn := range []*rdmacm.Conn{client, server} {
		for range 8 {
			group.Go(func() {
				if err := conn.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	group.Wait()
	require.NoError(t, client.Close())
	require.Zero(t, client.ID().PortNum())
	require.False(t, client.ID().LocalAddr().IsValid())
	require.ErrorIs(t, client.ID().Disconnect(), os.ErrClosed)
	require.True(t, client.LocalAddr().IsValid(), "the connection's addresses stay known")
}

func TestCloseWithRegisteredMemory(t *testing.T) {
	d := needDevice(t)
	client, _ := connect(t, d.IPv4, nil, nil)
	mr, err := client.PD().Register(make([]byte, 100), ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	var busy *ibverbs.BusyError
	require.ErrorAs(t, client.Close(), &busy)
	require.Len(t, busy.Children, 1)
	require.ErrorAs(t, client.Close(), &busy, "as long as it is so")
	require.NoError(t, mr.Close())
	require.NoError(t, client.Close())
}

func TestListenerClose(t *testing.T) {
	const requests = 3
	d := needDevice(t)
	ctx := bounded(t)
	ln := listenOn(t, d.IPv4)

	// One connection that is up, one request in the program's hands, others
	// that nobody has taken.
	result := acceptOne(ctx, ln, nil)
	client, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
	require.NoError(t, err)
	server := <-result
	require.NoError(t, server.err)
	dialed := make(chan error, requests+1)
	for range requests + 1 {
		go func() {
			conn, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
			if conn != nil {
				err = errors.Join(err, errors.New("connected"), conn.Close())
			}
			dialed <- err
		}()
	}
	taken, err := ln.Accept(ctx)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return rdmacm.Waiting(ln) == requests }, patience, time.Millisecond)

	waiting := make(chan error)
	require.NoError(t, ln.Close())
	go func() {
		_, err := ln.Accept(ctx)
		waiting <- err
	}()
	require.ErrorIs(t, <-waiting, os.ErrClosed)
	for range requests {
		require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
	}
	require.NoError(t, taken.Reject(nil))
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)

	// What was accepted stays up.
	mr := alloc(t, server.conn, 8)
	pending, err := server.conn.PostRecv(mr.All())
	require.NoError(t, err)
	require.NoError(t, client.Send(ctx))
	_, err = pending.Wait(ctx)
	require.NoError(t, err)
	require.NoError(t, client.Close())
	<-server.conn.Done()
	require.NoError(t, server.conn.Close())
	require.NoError(t, ln.Close(), "again")
}

func TestListenerCloseWakesAccept(t *testing.T) {
	d := needDevice(t)
	ln := listenOn(t, d.IPv4)
	result := make(chan error)
	const waiters = 4
	for range waiters {
		go func() {
			_, err := ln.Accept(t.Context())
			result <- err
		}()
	}
	require.NoError(t, ln.Close())
	for range waiters {
		err := <-result
		require.ErrorIs(t, err, os.ErrClosed)
		require.ErrorContains(t, err, ln.Addr().String())
	}
}

// Requests come while the listener closes: each gets an answer.
func TestListenerCloseRacesWithRequests(t *testing.T) {
	const rounds, dialers = 5, 6
	d := needDevice(t)
	for range rounds {
		ctx := bounded(t)
		ln := listenOn(t, d.IPv4)
		var group sync.WaitGroup
		for range dialers {
			group.Go(func() {
				conn, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%v, %v", conn, err)
				}
			})
		}
		require.Eventually(t, func() bool { return rdmacm.Waiting(ln) > 0 }, patience, time.Microsecond)
		require.NoError(t, ln.Close())
		group.Wait()
	}
}

func TestBacklog(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln, err := rdmacm.Listen(ctx, d.IPv4.String()+":0", &rdmacm.ListenConfig{Backlog: 1})
	require.NoError(t, err)
	dialed := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := rdmacm.Dial(ctx, ln.Addr().String(), nil)
			dialed <- err
		}()
	}
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED, "the second one is refused")
	require.Equal(t, 1, rdmacm.Waiting(ln))
	require.NoError(t, ln.Close())
	require.ErrorIs(t, <-dialed, syscall.ECONNREFUSED)
}

func TestWaitForTheEnd(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	ctx, cancel := context.WithCancel(bounded(t))
	cancel()
	require.ErrorIs(t, server.Wait(ctx), context.Canceled)
	require.NoError(t, client.Close())
	require.NoError(t, server.Wait(bounded(t)), "the peer has closed")
	require.ErrorIs(t, client.Wait(bounded(t)), os.ErrClosed)

	client, server = connect(t, d.IPv4, nil, nil)
	rdmacm.Inject(server, &rdmacm.Event{Type: rdmacm.EventDeviceRemoval})
	require.ErrorIs(t, server.Wait(bounded(t)), syscall.ENODEV)
	require.NoError(t, client.Wait(bounded(t)))
}
