// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"io"
	"os"
	"runtime"
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
				select {
				case err := <-ended:
					require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				case <-time.After(wakeBound):
					require.NoError(t, c.Close())
					require.FailNow(t, "the deadline has not woken the call")
				}
			})
		}
	}
}

// parksInPump reports whether a goroutine has the pump and waits for a completion.
func parksInPump() bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(stack, []byte("rsocket.(*pump).lead")) && bytes.Contains(stack, []byte("ibverbs.(*CQ).waitParked")) {
			return true
		}
	}
	return false
}

// wakeBound is how long a call may take that was woken: very long.
const wakeBound = 10 * time.Second
