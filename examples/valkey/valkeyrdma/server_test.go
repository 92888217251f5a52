// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"github.com/verbena-go/verbena/examples/valkey/internal/servertest"
	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// client is what the tests use of both clients.
type client interface {
	// do runs a command and returns its reply, a text or a number.
	do(ctx context.Context, args ...string) (string, error)
	// pipeline sends all commands before it reads the first reply.
	pipeline(ctx context.Context, commands [][]string) ([]string, error)
	// subscribe calls take for each message of a channel until it returns false.
	// subscribed is called when messages are no longer lost.
	subscribe(ctx context.Context, channel string, subscribed func(), take func(string) bool) error
	close()
}

// clients are functions that return a client of each kind.
var clients = map[string]func(t testing.TB, address string) client{
	"go-redis":  newGoRedis,
	"valkey-go": newValkeyGo,
}

type goRedis struct{ *redis.Client }

func newGoRedis(_ testing.TB, address string) client {
	return goRedis{redis.NewClient(&redis.Options{Addr: address, Dialer: valkeyrdma.Dial, DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute, MaxRetries: -1})}
}

func (c goRedis) do(ctx context.Context, args ...string) (string, error) {
	return text(c.Do(ctx, anys(args)...).Result())
}

func (c goRedis) pipeline(ctx context.Context, commands [][]string) ([]string, error) {
	done, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, command := range commands {
			p.Do(ctx, anys(command)...)
		}
		return nil
	})
	var replies []string
	for _, command := range done {
		reply, replyErr := text(command.(*redis.Cmd).Result())
		replies, err = append(replies, reply), errors.Join(err, replyErr)
	}
	return replies, err
}

func (c goRedis) subscribe(ctx context.Context, channel string, subscribed func(), take func(string) bool) error {
	s := c.Subscribe(ctx, channel)
	defer func() { _ = s.Close() }()
	if _, err := s.Receive(ctx); err != nil {
		return err
	}
	subscribed()
	for {
		m, err := s.ReceiveMessage(ctx)
		if err != nil || !take(m.Payload) {
			return err
		}
	}
}

func (c goRedis) close() { _ = c.Close() }

func anys(texts []string) []any {
	var all []any
	for _, s := range texts {
		all = append(all, s)
	}
	return all
}

func text(reply any, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return fmt.Sprint(reply), nil
}

type valkeyGo struct{ valkey.Client }

func newValkeyGo(t testing.TB, address string) client {
	c, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{address}, DisableCache: true, DisableRetry: true, ForceSingleClient: true, ConnWriteTimeout: time.Minute,
		DialCtxFn: func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return valkeyrdma.Dial(ctx, "rdma", address)
		},
	})
	require.NoError(t, err)
	return valkeyGo{c}
}

func (c valkeyGo) command(args []string) valkey.Completed {
	return c.B().Arbitrary(args[0]).Args(args[1:]...).Build()
}

func (c valkeyGo) do(ctx context.Context, args ...string) (string, error) {
	return text(c.Do(ctx, c.command(args)).ToAny())
}

func (c valkeyGo) pipeline(ctx context.Context, commands [][]string) (replies []string, err error) {
	var all []valkey.Completed
	for _, command := range commands {
		all = append(all, c.command(command))
	}
	for _, r := range c.DoMulti(ctx, all...) {
		reply, replyErr := text(r.ToAny())
		replies, err = append(replies, reply), errors.Join(err, replyErr)
	}
	return replies, err
}

func (c valkeyGo) subscribe(ctx context.Context, channel string, subscribed func(), take func(string) bool) error {
	dedicated, release := c.Dedicate()
	defer release()
	ended := errors.New("enough")
	var mu sync.Mutex
	var once sync.Once
	done := make(chan error, 1)
	wait := dedicated.SetPubSubHooks(valkey.PubSubHooks{
		OnSubscription: func(valkey.PubSubSubscription) { subscribed() },
		OnMessage: func(m valkey.PubSubMessage) {
			mu.Lock()
			defer mu.Unlock()
			if !take(m.Message) {
				once.Do(func() { done <- ended })
			}
		},
	})
	if err := dedicated.Do(ctx, dedicated.B().Subscribe().Channel(channel).Build()).Error(); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case err := <-wait:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c valkeyGo) close() { c.Close() }

// each runs a test with each client.
func each(t *testing.T, s *servertest.Server, test func(t *testing.T, c client)) {
	for name, dial := range clients {
		t.Run(name, func(t *testing.T) {
			c := dial(t, s.Address())
			defer c.close()
			test(t, c)
		})
	}
}

// Values of all sizes come back as they were.
func TestValues(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	sizes := []int{0, 1, 2, 31, 4095, 4096, 65_535, 128 << 10, 512<<10 - 1, 512 << 10, 512<<10 + 1, 1<<20 - 40, 1 << 20, 1<<20 + 1, 5_000_000}
	if testdevice.Soft() { // an emulated machine has no time for it
		sizes = append(sizes, 64<<20)
	}
	each(t, s, func(t *testing.T, c client) {
		random := rand.NewChaCha8([32]byte{})
		for _, n := range sizes {
			value := make([]byte, n)
			_, _ = random.Read(value)
			reply, err := c.do(t.Context(), "SET", "value", string(value))
			require.NoError(t, err)
			require.Equal(t, "OK", reply)
			reply, err = c.do(t.Context(), "GET", "value")
			require.NoError(t, err)
			require.True(t, reply == string(value), "another value of %d bytes, instead of %d", len(reply), n)
		}
	})
}

func TestPipeline(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	each(t, s, func(t *testing.T, c client) {
		const n = 10_000
		var commands [][]string
		var want []string
		for i := range n {
			commands = append(commands, []string{"SET", fmt.Sprint("key", i), strings.Repeat(fmt.Sprint(i), i%100)})
			want = append(want, "OK")
		}
		for i := range n {
			commands = append(commands, []string{"GET", fmt.Sprint("key", i)})
			want = append(want, strings.Repeat(fmt.Sprint(i), i%100))
		}
		replies, err := c.pipeline(t.Context(), commands)
		require.NoError(t, err)
		require.Equal(t, want, replies)
	})
}

func TestPubSub(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	each(t, s, func(t *testing.T, c client) {
		const n = 1000
		subscribed := make(chan struct{})
		var got []string
		received := cmtest.InBackground(func() error {
			return c.subscribe(t.Context(), "news", func() { close(subscribed) }, func(m string) bool {
				got = append(got, m)
				return len(got) < n
			})
		})
		cmtest.Take(t, subscribed, "the subscription")
		var want []string
		for i := range n {
			want = append(want, fmt.Sprint(i))
			reply, err := c.do(t.Context(), "PUBLISH", "news", want[i])
			require.NoError(t, err)
			require.Equal(t, "1", reply)
		}
		require.NoError(t, cmtest.Take(t, received, "the messages"))
		require.Equal(t, want, got)
	})
}

// dial returns a connection without a client, and a reader of lines from it.
func dial(t testing.TB, s *servertest.Server, dialer valkeyrdma.Dialer) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := dialer.Dial(cmtest.Bounded(t), "rdma", s.Address())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c, bufio.NewReader(c)
}

func requireLine(t *testing.T, r *bufio.Reader, want string) {
	t.Helper()
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, want+"\r\n", line)
}

// A Read whose deadline passes loses nothing: a later one goes on.
func TestReadDeadline(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	c, _ := dial(t, s, valkeyrdma.Dialer{})
	other, replies := dial(t, s, valkeyrdma.Dialer{})
	fmt.Fprint(c, "BLPOP list 0\r\n")
	b := make([]byte, 1000)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := c.Read(b)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	waits := cmtest.InBackground(func() error {
		_, err := c.Read(b)
		return err
	})
	require.ErrorIs(t, cmtest.Take(t, waits, "a Read after the deadline"), os.ErrDeadlineExceeded)

	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
	waits = cmtest.InBackground(func() error {
		_, err := c.Read(b)
		return err
	})
	require.NoError(t, c.SetReadDeadline(time.Now())) // while it waits
	require.ErrorIs(t, cmtest.Take(t, waits, "a Read in progress"), os.ErrDeadlineExceeded)

	fmt.Fprint(other, "RPUSH list value\r\n")
	requireLine(t, replies, ":1")
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	want := "*2\r\n$4\r\nlist\r\n$5\r\nvalue\r\n"
	_, err = io.ReadFull(c, b[:len(want)])
	require.NoError(t, err)
	require.Equal(t, want, string(b[:len(want)]))
}

// A Write whose deadline passes in the middle says how much it has written, and
// a later one goes on.
func TestWriteDeadline(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	c, replies := dial(t, s, valkeyrdma.Dialer{})
	value := make([]byte, 16<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value)
	request := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", len(value), value)
	fmt.Fprint(c, "DEBUG SLEEP 1\r\n")
	passed := 0
	for wait := time.Millisecond; len(request) > 0; wait *= 2 {
		require.NoError(t, c.SetWriteDeadline(time.Now().Add(wait)))
		n, err := c.Write(request)
		if err != nil {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			passed++
		}
		request = request[n:]
	}
	require.Positive(t, passed)
	requireLine(t, replies, "+OK")
	requireLine(t, replies, "+OK")
	fmt.Fprint(c, "GET k\r\n")
	requireLine(t, replies, "$"+strconv.Itoa(len(value)))
	got := make([]byte, len(value))
	_, err := io.ReadFull(replies, got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(value, got), "another value")
}

// A server that is busy posts no receives again. The client waits before it
// runs out of them.
func TestBusyServer(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	c, replies := dial(t, s, valkeyrdma.Dialer{})
	fmt.Fprint(c, "DEBUG SLEEP 1\r\n")
	const n = 5000
	wrote := cmtest.InBackground(func() error {
		for i := range n {
			if _, err := fmt.Fprintf(c, "ECHO %d\r\n", i+10_000); err != nil {
				return err
			}
		}
		return nil
	})
	requireLine(t, replies, "+OK")
	for i := range n {
		requireLine(t, replies, "$5")
		requireLine(t, replies, strconv.Itoa(i+10_000))
	}
	require.NoError(t, cmtest.Take(t, wrote, "the commands"))
}

// Windows of other sizes than the server's serve as well.
func TestWindows(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	value := make([]byte, 3_000_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value)
	for _, window := range []int{1, 5000, 1 << 20, 16 << 20} {
		c, replies := dial(t, s, valkeyrdma.Dialer{Window: window})
		fmt.Fprintf(c, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", len(value), value)
		requireLine(t, replies, "$"+strconv.Itoa(len(value)))
		got := make([]byte, len(value))
		_, err := io.ReadFull(replies, got)
		require.NoError(t, err)
		require.True(t, bytes.Equal(value, got), "another value with a window of %d bytes", window)
		require.NoError(t, c.Close())
	}
}

// A server that closes the connection ends it after what it has sent before.
func TestServerCloses(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	c, replies := dial(t, s, valkeyrdma.Dialer{})
	fmt.Fprint(c, "QUIT\r\n")
	// The server disconnects at once, which may flush the write of its answer.
	answer, err := io.ReadAll(replies)
	require.NoError(t, err)
	require.Contains(t, []string{"+OK\r\n", ""}, string(answer))
	cmtest.Soon(t, "a Write fails", func() bool {
		_, err = c.Write([]byte("PING\r\n"))
		return err != nil
	})
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A client whose server is killed, or restarted, gets errors until the server
// is there again, and goes on.
func TestReconnect(t *testing.T) {
	s := servertest.Start(t)
	for how, by := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stops": syscall.SIGTERM} {
		t.Run(how, func(t *testing.T) {
			each(t, s, func(t *testing.T, c client) {
				_, err := c.do(t.Context(), "SET", "key", "value")
				require.NoError(t, err)
				blocked := cmtest.InBackground(func() error {
					_, err := c.do(t.Context(), "BLPOP", "list", "0")
					return err
				})
				s.End(by)
				require.Error(t, cmtest.Take(t, blocked, "a command in progress"))
				_, err = c.do(cmtest.Bounded(t), "GET", "key")
				require.Error(t, err)
				s.Restart()
				cmtest.Soon(t, "a command succeeds", func() bool {
					_, err = c.do(t.Context(), "SET", "key", "value")
					return err == nil
				})
			})
		})
	}
}

// A server that is busy finishes the handshakes of clients that have given up.
// Valkey 8.1 crashes three seconds after it has failed to.
func TestClientsGiveUp(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	c, replies := dial(t, s, valkeyrdma.Dialer{})
	fmt.Fprint(c, "DEBUG SLEEP 1\r\n")
	var ends sync.WaitGroup
	for i := range 20 {
		ends.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Millisecond)
			defer cancel()
			if c, err := valkeyrdma.Dial(ctx, "rdma", s.Address()); err == nil {
				_ = c.Close()
			}
		})
	}
	ends.Wait()
	requireLine(t, replies, "+OK")
	other, replies := dial(t, s, valkeyrdma.Dialer{}) // the server has come to those before
	fmt.Fprint(other, "PING\r\n")
	requireLine(t, replies, "+PONG")
	require.NotContains(t, s.Output(), "failed")
	requireNoHandshakes(t, s.Address())
}

// The server takes one connection after the other. So the clients connect one
// by one.
func TestManyClients(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	const n = 100
	var all []client
	for range n {
		c := newGoRedis(t, s.Address())
		defer c.close()
		_, err := c.do(t.Context(), "PING")
		require.NoError(t, err)
		all = append(all, c)
	}
	var ends sync.WaitGroup
	errs := make(chan error, n)
	for i, c := range all {
		ends.Go(func() { errs <- setAndGet(t.Context(), c, fmt.Sprint("key", i)) })
	}
	ends.Wait()
	for range n {
		require.NoError(t, <-errs)
	}
}

// setAndGet sets a key, of which no other client knows, and gets its value.
func setAndGet(ctx context.Context, c client, key string) error {
	for round := range 5 {
		value := strings.Repeat(fmt.Sprint(key, round), 1000)
		if _, err := c.do(ctx, "SET", key, value); err != nil {
			return err
		}
		got, err := c.do(ctx, "GET", key)
		if err != nil {
			return err
		}
		if got != value {
			return fmt.Errorf("%s has another value", key)
		}
	}
	return nil
}
