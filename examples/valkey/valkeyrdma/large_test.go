// SPDX-License-Identifier: Apache-2.0

package valkeyrdma_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/examples/valkey/internal/servertest"
	"github.com/verbena-go/verbena/examples/valkey/valkeyrdma"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/racing"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// large is the size of values in tests of what comes in the middle of one. An
// emulated machine has less time.
func large() int {
	if testdevice.Soft() {
		return 16 << 20
	}
	return 4 << 20
}

func randomValue(n int) []byte {
	value := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(value)
	return value
}

// The largest value that Valkey takes by default comes back as it was.
func TestLargestValue(t *testing.T) {
	n := int64(512 << 20)
	if racing.Enabled || !testdevice.Soft() { // which take ten times as long
		n = 16 << 20
	}
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	c, replies := dial(t, s, valkeyrdma.Dialer{})
	wrote := cmtest.InBackground(func() error {
		_, err := fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", n)
		_, copyErr := io.CopyN(c, rand.NewChaCha8([32]byte{}), n)
		_, endErr := fmt.Fprint(c, "\r\n")
		return errors.Join(err, copyErr, endErr)
	})
	requireLine(t, replies, "+OK")
	require.NoError(t, cmtest.Take(t, wrote, "the value"))
	fmt.Fprint(c, "GET k\r\n")
	requireLine(t, replies, fmt.Sprint("$", n))
	want := rand.NewChaCha8([32]byte{})
	got, expected := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < n; at += int64(len(got)) {
		_, err := io.ReadFull(replies, got)
		require.NoError(t, err)
		_, _ = want.Read(expected)
		require.True(t, bytes.Equal(expected, got), "other bytes after %d", at)
	}
	requireLine(t, replies, "")
}

// A Read whose deadline passes in the middle of a value says how much it has
// read, and a later one goes on.
func TestReadDeadlineInValue(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	value := randomValue(large())
	c, replies := dial(t, s, valkeyrdma.Dialer{})
	fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", len(value), value)
	requireLine(t, replies, "+OK")
	fmt.Fprint(c, "GET k\r\n")
	requireLine(t, replies, fmt.Sprint("$", len(value)))
	got := make([]byte, len(value))
	n, passed := 0, 0
	for wait := 10 * time.Microsecond; n < len(got); {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(wait)))
		more, err := io.ReadFull(replies, got[n:])
		n += more
		if n < len(got) {
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			passed++
		}
		if more == 0 {
			wait *= 2 // the machine is slow
		}
	}
	require.Positive(t, passed)
	require.True(t, bytes.Equal(value, got), "another value")
	require.NoError(t, c.SetReadDeadline(time.Time{}))
	requireLine(t, replies, "")
}

// A server that is killed in the middle of a value ends Read and Write.
func TestServerIsKilledInValue(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	value := randomValue(large())
	request := fmt.Appendf(nil, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n", len(value), value)
	reader, replies := dial(t, s, valkeyrdma.Dialer{})
	_, err := reader.Write(request)
	require.NoError(t, err)
	requireLine(t, replies, "+OK")
	writer, _ := dial(t, s, valkeyrdma.Dialer{})
	_, err = writer.Write(request[:len(request)/2])
	require.NoError(t, err)
	fmt.Fprint(reader, "GET k\r\n")
	requireLine(t, replies, fmt.Sprint("$", len(value)))
	s.End(syscall.SIGKILL)
	got, err := io.ReadAll(replies)
	require.NoError(t, err) // io.EOF
	require.Less(t, len(got), len(value))
	require.True(t, bytes.HasPrefix(value, got), "other bytes")
	wrote := cmtest.InBackground(func() error {
		_, err := writer.Write(request[len(request)/2:])
		return err
	})
	require.ErrorIs(t, cmtest.Take(t, wrote, "the Write"), syscall.ECONNRESET)
}

// Clients whose server is killed while they send or wait for a large value get
// an error, and go on when the server is there again.
func TestReconnectInValue(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	value := string(randomValue(large()))
	each(t, s, func(t *testing.T, c client) {
		for _, command := range [][]string{{"SET", "k", value}, {"GET", "k"}} {
			_, err := c.do(t.Context(), "SET", "k", value)
			require.NoError(t, err)
			s.Signal(syscall.SIGSTOP)
			ended := cmtest.InBackground(func() error {
				_, err := c.do(t.Context(), command...)
				return err
			})
			s.End(syscall.SIGKILL)
			require.Error(t, cmtest.Take(t, ended, "the command"))
			s.Restart()
			cmtest.Soon(t, "the value is set", func() bool {
				_, err := c.do(t.Context(), "SET", "k", value)
				return err == nil
			})
			got, err := c.do(t.Context(), "GET", "k")
			require.NoError(t, err)
			require.True(t, got == value, "another value")
		}
	})
}

// Messages larger than all windows come to subscribers as they were.
func TestLargeMessages(t *testing.T) {
	s := servertest.Start(t)
	testdevice.NoLeaks(t)
	each(t, s, func(t *testing.T, c client) {
		const n = 4
		message := string(randomValue(5_000_000))
		subscribed, got := make(chan struct{}), make(chan string, n)
		received := cmtest.InBackground(func() error {
			return c.subscribe(t.Context(), "news", func() { close(subscribed) }, func(m string) bool {
				got <- m
				return len(m) > 0
			})
		})
		cmtest.Take(t, subscribed, "the subscription")
		for i := range n {
			want := message[i:]
			reply, err := c.do(t.Context(), "PUBLISH", "news", want)
			require.NoError(t, err)
			require.Equal(t, "1", reply)
			require.True(t, cmtest.Take(t, got, "the message") == want, "another message")
		}
		_, err := c.do(t.Context(), "PUBLISH", "news", "")
		require.NoError(t, err)
		require.NoError(t, cmtest.Take(t, received, "the end"))
	})
}
