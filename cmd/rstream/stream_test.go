// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// ends returns two ends with the same flags, and the connections between them.
func ends(t *testing.T, args string) (server, client *stream, conn func() (there, here net.Conn)) {
	t.Helper()
	end := func(args string) *stream {
		o := &options{}
		require.NoError(t, o.program().Parse(strings.Fields(args)))
		return &stream{options: o}
	}
	return end(args), end(args + " -s host"), func() (net.Conn, net.Conn) { return net.Pipe() }
}

func TestStream(t *testing.T) {
	server, client, connect := ends(t, "-T v")
	for _, r := range []row{{"one", 1, 1, 1}, {"small", 3, 5, 2}, {"large", 100_000, 3, 2}} { // over a connection each
		there, here := connect()
		server.connect = func(int) (net.Conn, error) { return there, nil }
		client.connect = func(int) (net.Conn, error) { return here, nil }
		var tables [2]bytes.Buffer
		served := make(chan error, 1)
		go func() { served <- server.run(t.Context(), program.Output{Stdout: &tables[0]}, 0, r, r) }()
		require.NoError(t, client.run(t.Context(), program.Output{Stdout: &tables[1]}, 0, r, r))
		require.NoError(t, <-served)
		for _, table := range tables {
			lines := strings.Split(table.String(), "\n")
			require.Len(t, lines, 3)
			bytes := sizeText(int64(2 * r.size * r.transfers * r.iterations))
			require.Equal(t, []string{r.name, sizeText(int64(r.size)), fmt.Sprint(r.transfers), fmt.Sprint(r.iterations), bytes},
				strings.Fields(lines[0])[:5])
		}
	}
	require.Equal(t, server.sent, client.received)
	require.Equal(t, client.sent, server.received)
}

// A byte that is not the one that was sent does not pass.
func TestVerify(t *testing.T) {
	server, client, connect := ends(t, "-T v")
	there, here := connect()
	server.connect = func(int) (net.Conn, error) { return there, nil }
	client.connect = func(int) (net.Conn, error) { return &wrong{Conn: here, at: 100}, nil }
	served := make(chan error, 1)
	go func() {
		served <- server.run(t.Context(), program.Output{Stdout: io.Discard}, 0, row{"test", 50, 3, 1})
	}()
	require.ErrorIs(t, client.run(t.Context(), program.Output{Stdout: io.Discard}, 0, row{"test", 50, 3, 1}), io.ErrClosedPipe)
	require.EqualError(t, <-served, "test test of 50 bytes: byte 100 is 0x65, not 0x64")
}

// A client that sends more than the server expects has other flags.
func TestStreamDisagrees(t *testing.T) {
	server, client, connect := ends(t, "")
	there, here := connect()
	server.connect = func(int) (net.Conn, error) { return there, nil }
	client.connect = func(int) (net.Conn, error) { return here, nil }
	served := make(chan error, 1)
	go func() {
		served <- server.run(t.Context(), program.Output{Stdout: io.Discard}, 0, row{"test", 50, 1, 1})
	}()
	require.Error(t, client.run(t.Context(), program.Output{Stdout: io.Discard}, 0, row{"test", 50, 1, 2}))
	require.ErrorContains(t, <-served, "do -I, -C and -S agree?")
}

// wrong changes the byte at a position of what is written.
type wrong struct {
	net.Conn
	sent, at int
}

func (w *wrong) Write(b []byte) (int, error) {
	b = bytes.Clone(b)
	if i := w.at - w.sent; 0 <= i && i < len(b) {
		b[i]++
	}
	w.sent += len(b)
	return w.Conn.Write(b)
}

// The peer's end, and an interrupt, end a test.
func TestStreamEnds(t *testing.T) {
	_, client, connect := ends(t, "")
	there, here := connect()
	client.connect = func(int) (net.Conn, error) { return here, nil }
	go func() {
		_, _ = io.CopyN(io.Discard, there, hello)
		_ = there.Close()
	}()
	err := client.run(t.Context(), program.Output{Stdout: io.Discard}, 0, row{"test", 50, 3, 1})
	require.ErrorIs(t, err, io.EOF)
	require.ErrorContains(t, err, "test test of 50 bytes")

	_, here = connect()
	ctx, cancel := context.WithCancel(t.Context())
	client.connect = func(int) (net.Conn, error) {
		cancel()
		return here, nil
	}
	require.ErrorContains(t, client.run(ctx, program.Output{Stdout: io.Discard}, 0, row{"test", 50, 3, 1}), "i/o timeout")
}

// Both ends over TCP, as with C's program: the client tries until the server
// listens.
func TestTCP(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	args := "-T s -T v -f ip -B 65536 -b 127.0.0.1 -S 5000 -C 7 -I 3 -p " + port
	type ended struct {
		status         int
		stdout, stderr string
	}
	server := make(chan ended, 1)
	go func() {
		status, stdout, stderr := tested.Run(args)
		server <- ended{status, stdout, stderr}
	}()
	var client ended
	require.Eventually(t, func() bool {
		status, stdout, stderr := tested.Run(args + " -s 127.0.0.1")
		client = ended{status, stdout, stderr}
		return !strings.Contains(stderr, "connection refused")
	}, time.Minute, 10*time.Millisecond)
	for _, e := range []ended{client, <-server} {
		require.Zero(t, e.status, e.stderr)
		require.Empty(t, e.stderr)
		require.Regexp(t, `^name .*\ncustom    4.8k    7       3       205k .*\n$`, e.stdout)
	}
}
