package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// endingContext ends on demand, and calls atEnd before anybody learns of it.
type endingContext struct {
	context.Context
	waited, done chan struct{} // closed when somebody waits for the end, and at the end
	wait, ended  sync.Once
	atEnd        func()
}

func newEndingContext(atEnd func()) *endingContext {
	return &endingContext{Context: context.Background(), waited: make(chan struct{}), done: make(chan struct{}), atEnd: atEnd}
}

func (c *endingContext) Done() <-chan struct{} {
	c.wait.Do(func() { close(c.waited) })
	return c.done
}

func (c *endingContext) Err() error {
	select {
	case <-c.done:
		c.ended.Do(c.atEnd)
		return context.Canceled
	default:
		return nil
	}
}

// stuck makes a goroutine wait for completions on a connection, with a message
// for which the peer has no receive.
func stuck(t *testing.T, conn *rdmacm.Conn) <-chan error {
	t.Helper()
	ctx := bounded(t)
	sent := inBackground(func() error { return conn.Send(ctx) })
	soon(t, "somebody waits", func() bool { return rdmacm.Sending(conn) == 1 && rdmacm.HasLeader(conn) })
	return sent
}

// A message that comes as the context of Recv ends is not lost.
func TestRecvEndsWithMessage(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	first, second := alloc(t, client, 8), alloc(t, client, 8)
	from := alloc(t, server, 8)
	sent := stuck(t, client)
	ctx := newEndingContext(func() {
		other, err := client.PostRecv(second.All())
		require.NoError(t, err)
		for _, text := range []string{"message1", "message2"} {
			copy(from.Bytes(), text)
			require.NoError(t, server.Send(bounded(t), from.All()))
		}
		_, err = other.Wait(bounded(t)) // and so the first one is there
		require.NoError(t, err)
	})
	go func() {
		<-ctx.waited
		close(ctx.done)
	}()
	n, err := client.Recv(ctx, first.All())
	t.Log(n, err)
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
		n, err = client.Recv(bounded(t), first.All())
		require.NoError(t, err, "the message is lost")
	}
	require.Equal(t, "message1", string(first.Bytes()[:n]))
	_, err = server.Recv(bounded(t))
	require.NoError(t, err)
	require.NoError(t, <-sent)
}

// A context that ends as the transfer does is no reason to say that nothing was
// sent.
func TestSendEndsWithContext(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	sent := stuck(t, client)
	var receives []*rdmacm.Receive
	ctx := newEndingContext(func() {
		for range 2 {
			r, err := server.PostRecv()
			require.NoError(t, err)
			receives = append(receives, r)
		}
		for _, r := range receives {
			_, err := r.Wait(bounded(t))
			require.NoError(t, err)
		}
		soon(t, "both sends are done", func() bool { return rdmacm.Sending(client) == 0 })
	})
	go func() {
		<-ctx.waited
		close(ctx.done)
	}()
	err := client.Send(ctx)
	require.NoError(t, <-sent)
	var pending *rdmacm.PendingError
	if errors.As(err, &pending) {
		err = pending.Transfer.Wait(bounded(t))
	}
	require.NoError(t, err, "it was sent")
}

// Recv with short timeouts takes every message.
func TestRecvLoop(t *testing.T) {
	d := needDevice(t)
	client, server := connect(t, d.IPv4, nil, nil)
	to, from := alloc(t, client, 4).All(), alloc(t, server, 4)
	ctx := bounded(t)
	const messages = 300
	sent := inBackground(func() error {
		for i := range messages {
			from.Bytes()[0], from.Bytes()[1] = byte(i), byte(i>>8)
			if err := server.Send(ctx, from.All()); err != nil {
				return err
			}
		}
		return nil
	})
	// Others wait on the connection too, as those who write.
	here, there := alloc(t, client, 8), alloc(t, server, 8)
	quit := make(chan struct{})
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
					_ = client.Write(ctx, there.Remote(), here.All())
				}
			}
		})
	}
	got, timeouts, lost := 0, 0, 0
	for next := 0; next < messages; {
		c, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(3000))*time.Microsecond)
		_, err := client.Recv(c, to)
		cancel()
		if err != nil {
			require.NoError(t, ctx.Err(), "at %d, %d timeouts, %d lost", next, timeouts, lost)
			timeouts++
			continue
		}
		i := int(to.Bytes()[0]) | int(to.Bytes()[1])<<8
		lost += i - next
		next = i + 1
		got++
	}
	close(quit)
	writers.Wait()
	t.Logf("%d messages, %d timeouts, %d lost", got, timeouts, lost)
	require.Zero(t, lost)
	require.NoError(t, <-sent)
}
