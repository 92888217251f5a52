// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// A context that has ended stops a transfer before it begins.
func TestEndedContextStopsTransfers(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 64), alloc(t, server, 64)
	received, err := server.PostRecv(there.Sub(32, 8))
	require.NoError(t, err)
	here.Bytes()[0] = 1
	ended := canceled(t)
	piece := here.Sub(0, 8)
	for name, transfer := range map[string]func() error{
		"Send":     func() error { return client.Send(ended, piece) },
		"SendImm":  func() error { return client.SendImm(ended, 1, piece) },
		"Write":    func() error { return client.Write(ended, there.Remote(), piece) },
		"WriteImm": func() error { return client.WriteImm(ended, there.Remote(), 1, piece) },
		"Read":     func() error { return client.Read(ended, piece, there.Remote()) },
		"FetchAdd": func() error { return client.FetchAdd(ended, there.Remote(), 1, piece) },
	} {
		err := transfer()
		require.ErrorIs(t, err, context.Canceled, name)
		var pending *rdmacm.PendingError
		require.False(t, errors.As(err, &pending), "%s: nothing is under way", name)
	}
	require.NoError(t, client.Send(bounded(t)), "whose message is the first one to come")
	n, err := received.Wait(bounded(t))
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, make([]byte, 64), there.Bytes())
	_, isWrite := received.Written()
	require.False(t, isWrite)
}

// abandoned calls f, which sends, and ends its context when the send is under
// way. It returns the error of f.
func abandoned(t *testing.T, conn *rdmacm.Conn, f func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(bounded(t))
	result := inBackground(func() error { return f(ctx) })
	soon(t, "the send", func() bool { return rdmacm.Sending(conn) > 0 })
	cancel()
	return cmtest.Take(t, result, "the end of the send")
}

// short returns a context that ends soon.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// After its context has ended, a transfer can be waited for again.
func TestPendingTransfer(t *testing.T) {
	needOwnReceives(t)
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	here.Bytes()[0] = 7
	err := abandoned(t, client, func(ctx context.Context) error { return client.Send(ctx, here.All()) }) // the peer has no receive
	var pending *rdmacm.PendingError
	require.ErrorAs(t, err, &pending)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "goes on")
	require.ErrorAs(t, pending.Transfer.Wait(short(t)), &pending, "still")
	received, err := server.PostRecv(there.All())
	require.NoError(t, err)
	require.NoError(t, pending.Transfer.Wait(bounded(t)))
	_, err = received.Wait(bounded(t))
	require.NoError(t, err)
	require.Equal(t, byte(7), there.Bytes()[0])
	require.ErrorIs(t, (*rdmacm.Transfer)(nil).Wait(bounded(t)), os.ErrInvalid)
}

// Calls of Recv in a loop, with short times, lose no message and do not run out
// of receives.
func TestRecvInALoop(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	there := alloc(t, server, 64)
	for range 40 { // more than Config.RecvQueue
		_, err := server.Recv(short(t), there.Sub(0, 8))
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	_, err := server.Recv(bounded(t), there.Sub(8, 8))
	require.ErrorIs(t, err, syscall.EBUSY, "the message would be lost")
	out := alloc(t, client, 8)
	for i := range 5 {
		out.Bytes()[0] = byte(i)
		sent := make(chan error, 1)
		each(sent, func() error { return client.Send(bounded(t), out.Sub(0, i+1)) })
		n, err := server.Recv(bounded(t), there.Sub(0, 8))
		require.NoError(t, err)
		require.NoError(t, <-sent)
		require.Equal(t, i+1, n)
		require.Equal(t, byte(i), there.Bytes()[0])
	}
	_, err = server.PostRecv(there.Sub(16, 8))
	require.NoError(t, err)
}

func TestDatagramRecvInALoop(t *testing.T) {
	d := needDevice(t)
	client, server := datagrams(t, d.IPv4, nil, nil)
	there, err := server.Alloc(server.MTU(), ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	for range 40 {
		_, _, err := server.Recv(short(t), there.All())
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	out, err := client.Alloc(8, 0)
	require.NoError(t, err)
	require.NoError(t, client.Send(bounded(t), out.Sub(0, 3)))
	n, from, err := server.Recv(bounded(t), there.All())
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, client.QP().Num(), from.QPNum)
}

// A context that ends just as the message comes loses neither the message nor
// the result of a transfer.
func TestContextEndsWithTheTransfer(t *testing.T) {
	const rounds = 150
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	there, out := alloc(t, server, 8), alloc(t, client, 8)
	_, err := client.PostRecv() // for another poller than the goroutine that gives up
	require.NoError(t, err)
	brief := func(i int) (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), time.Duration(i%30)*100*time.Microsecond)
	}
	sent := make(chan error, 1)
	each(sent, func() error {
		for i := range rounds {
			out.Bytes()[0] = byte(i)
			ctx, cancel := brief(i)
			err := client.Send(ctx, out.Sub(0, 1))
			cancel()
			if pending, ok := errors.AsType[*rdmacm.PendingError](err); ok {
				err = pending.Transfer.Wait(t.Context())
			} else if errors.Is(err, context.DeadlineExceeded) { // nothing was sent
				err = client.Send(t.Context(), out.Sub(0, 1))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i := range rounds {
		for attempt := 7; ; attempt++ {
			ctx, cancel := brief(i + attempt)
			n, err := server.Recv(ctx, there.All())
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				continue
			}
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.Equal(t, byte(i), there.Bytes()[0], "none is lost, and none comes twice")
			break
		}
	}
	require.NoError(t, <-sent)
}

// A goroutine that reads the connection's memory reads on while the connection
// is closed.
func TestMemoryOutlivesItsReaders(t *testing.T) {
	d := needDevice(t)
	debug.SetPanicOnFault(true) // the failure would be a fault
	defer debug.SetPanicOnFault(false)
	for range 5 {
		client, server := connect(t, d.IPv4, nil, nil)
		there := alloc(t, server, 1<<20)
		there.Bytes()[1<<20-1] = 5
		data := there.Bytes()
		require.NoError(t, server.Close())
		require.Equal(t, byte(5), data[1<<20-1])
		require.NoError(t, client.Close())
		require.Nil(t, there.Bytes())
	}
}
