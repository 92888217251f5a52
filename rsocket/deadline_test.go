// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"io"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

// A deadline in the past ends each call that waits, also that of the goroutine
// that waits for the completions of all.
func TestPastDeadlineEndsCalls(t *testing.T) {
	past := func(set func(*rsocket.Conn, time.Time) error) func(*rsocket.Conn) error {
		return func(c *rsocket.Conn) error { return set(c, time.Unix(1, 0)) }
	}
	read, write := past((*rsocket.Conn).SetReadDeadline), past((*rsocket.Conn).SetWriteDeadline)
	both := past((*rsocket.Conn).SetDeadline)
	for poolName, pool := range pools {
		for name, tt := range map[string]struct {
			call func(*rsocket.Conn) error
			ends func(*rsocket.Conn) error
		}{
			"Read":            {func(c *rsocket.Conn) error { _, err := c.Read(make([]byte, 1)); return err }, read},
			"Read, by both":   {func(c *rsocket.Conn) error { _, err := c.Read(make([]byte, 1)); return err }, both},
			"Peek":            {func(c *rsocket.Conn) error { _, err := c.Peek(1); return err }, read},
			"Discard":         {func(c *rsocket.Conn) error { _, err := c.Discard(1); return err }, read},
			"WriteTo":         {func(c *rsocket.Conn) error { _, err := c.WriteTo(io.Discard); return err }, read},
			"Write":           {func(c *rsocket.Conn) error { _, err := c.Write(make([]byte, 1<<20)); return err }, write},
			"Write, by both":  {func(c *rsocket.Conn) error { _, err := c.Write(make([]byte, 1<<20)); return err }, both},
			"ReadFrom":        {func(c *rsocket.Conn) error { _, err := c.ReadFrom(neverEnding{}); return err }, write},
			"ReadFrom, small": {func(c *rsocket.Conn) error { _, err := c.ReadFrom(bytes.NewReader(make([]byte, 1<<20))); return err }, write},
		} {
			t.Run(poolName+"/"+name, func(t *testing.T) {
				config := rsocket.Config{ReadBuffer: 1 << 12, WriteBuffer: 1 << 12, Pool: pool()}
				c, _ := pairOn(t, listen(t, rsocket.Config{}), config)
				ended := inBackground(func() error { return tt.call(c) })
				cmtest.Soon(t, "the call waits for completions", func() bool { return parksInPump() })
				require.NoError(t, tt.ends(c))
				require.ErrorIs(t, woken(t, ended, "the deadline"), os.ErrDeadlineExceeded)
			})
		}
	}
}

// A deadline in the past also ends calls that wait behind another one for the
// direction.
func TestPastDeadlineEndsWaitsForTheDirection(t *testing.T) {
	c, _ := pair(t, rsocket.Config{}, rsocket.Config{})
	const calls = 3
	ended := make(chan error, calls)
	for range calls {
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
	}
	cmtest.Soon(t, "one Read waits for completions, and the others for it", func() bool {
		return parksInPump() && waiting("rsocket.(*Conn).begin(") == calls-1
	})
	require.NoError(t, c.SetReadDeadline(time.Unix(1, 0)))
	for range calls {
		require.ErrorIs(t, woken(t, ended, "the deadline"), os.ErrDeadlineExceeded)
	}
}

// CloseRead and CloseWrite end calls that wait, although no message comes with
// the former.
func TestClosedDirectionEndsCalls(t *testing.T) {
	for name, tt := range map[string]struct {
		call  func(*rsocket.Conn) error
		close func(*rsocket.Conn) error
		want  error
	}{
		"read":  {func(c *rsocket.Conn) error { _, err := c.Read(make([]byte, 1)); return err }, (*rsocket.Conn).CloseRead, io.EOF},
		"write": {func(c *rsocket.Conn) error { _, err := c.Write(make([]byte, 1<<20)); return err }, (*rsocket.Conn).CloseWrite, syscall.EPIPE},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := pair(t, rsocket.Config{}, rsocket.Config{})
			ended := inBackground(func() error { return tt.call(c) })
			cmtest.Soon(t, "the call waits for completions", parksInPump)
			require.NoError(t, tt.close(c))
			require.ErrorIs(t, woken(t, ended, "the end of its direction"), tt.want)
		})
	}
}

// waiting returns how many goroutines are in a function.
func waiting(function string) int {
	stacks := make([]byte, 1<<20)
	return bytes.Count(stacks[:runtime.Stack(stacks, true)], []byte(function))
}

// parksInPump reports whether a goroutine has the pump and waits for a
// completion.
func parksInPump() bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("rsocket.(*pump).takeUntil")) && bytes.Contains(stack, []byte("ibverbs.(*CQ).waitParked")) {
			return true
		}
	}
	return false
}

// woken returns how a call has ended that something must have woken. Half of
// patience is very long for that, and shorter than the deadlines that
// closedWith sets, which would.
func woken(t *testing.T, ended <-chan error, what string) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience / 2):
		require.FailNow(t, "the call waits on", "%s has not woken it", what)
		return nil
	}
}
