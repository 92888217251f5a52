// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "-listen tcp:127.0.0.1:0", "-to rdma:192.0.2.1:7471", "-listen 127.0.0.1:0 -to tcp:127.0.0.1:80",
		"-listen udp:127.0.0.1:0 -to tcp:127.0.0.1:80", "-listen tcp:127.0.0.1:0 -to rdma:192.0.2.1:7471 more")
}

// pair starts two proxies between the address that it returns and a TCP server.
func pair(t *testing.T, server net.Addr) (address string, beside [2]*process.Process) {
	t.Helper()
	d := testdevice.Require(t)
	beside[0] = process.StartMain(t, "-listen", "rdma:"+d.IPv4.String()+":0", "-to", "tcp:"+server.String())
	beside[1] = process.StartMain(t, "-listen", "tcp:127.0.0.1:0", "-to", "rdma:"+beside[0].Prints(`listening on (\S+)\n`))
	return beside[1].Prints(`listening on (\S+)\n`), beside
}

// stopAll interrupts the proxies, which had nothing to complain about until
// then.
func stopAll(t *testing.T, beside [2]*process.Process) {
	t.Helper()
	for _, p := range beside {
		require.Empty(t, p.Stderr())
	}
	for _, p := range beside {
		p.Signal(os.Interrupt)
		require.Zero(t, p.Wait())
	}
}

// random returns bytes that depend on a seed.
func random(t *testing.T, seed byte, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := rand.NewChaCha8([32]byte{seed}).Read(b)
	require.NoError(t, err)
	return b
}

func TestHTTPThroughProxies(t *testing.T) {
	page := random(t, 1, 300_000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && bytes.Equal(body, page) {
			_, _ = w.Write(body)
		}
	}))
	defer server.Close()
	address, beside := pair(t, server.Listener.Addr())
	for range 3 {
		resp, err := server.Client().Post("http://"+address, "application/octet-stream", bytes.NewReader(page))
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.True(t, bytes.Equal(page, body))
		require.NoError(t, resp.Body.Close())
	}
	server.Client().CloseIdleConnections()
	server.Close()
	stopAll(t, beside)
}

// listen returns a TCP listener, and its next connection.
func listen(t *testing.T) (ln net.Listener, next func() *net.TCPConn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln, func() *net.TCPConn {
		conn, err := ln.Accept()
		require.NoError(t, err)
		return bounded(t, conn)
	}
}

func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	return bounded(t, conn)
}

// bounded keeps a connection from hanging for ever.
func bounded(t *testing.T, conn net.Conn) *net.TCPConn {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(2*time.Minute)))
	return conn.(*net.TCPConn)
}

// Each direction ends by itself, with all its data.
func TestHalfClose(t *testing.T) {
	ln, next := listen(t)
	address, beside := pair(t, ln.Addr())
	question, answer := random(t, 2, 300_007), random(t, 3, 500_011)
	for range 2 {
		client := dial(t, address)
		server := next()
		sent := make(chan error, 1)
		go func() {
			_, err := client.Write(question)
			if err == nil {
				err = client.CloseWrite()
			}
			sent <- err
		}()
		got, err := io.ReadAll(server) // until the client's half is closed
		require.NoError(t, err)
		require.NoError(t, <-sent)
		require.True(t, bytes.Equal(question, got))
		go func() {
			_, err := server.Write(answer)
			if err == nil {
				err = server.CloseWrite()
			}
			sent <- err
		}()
		got, err = io.ReadAll(client)
		require.NoError(t, err)
		require.NoError(t, <-sent)
		require.True(t, bytes.Equal(answer, got))
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	}
	stopAll(t, beside)
}

// A connection that breaks on one side breaks on the other one, and does not
// look like an orderly end there; the next one works.
func TestBroken(t *testing.T) {
	ln, next := listen(t)
	address, beside := pair(t, ln.Addr())
	for _, clientBreaks := range []bool{true, false} {
		t.Run(fmt.Sprintf("client breaks: %v", clientBreaks), func(t *testing.T) {
			client := dial(t, address)
			server := next()
			_, err := client.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(server, make([]byte, 5))
			require.NoError(t, err)
			breaks, other := server, client
			if clientBreaks {
				breaks, other = client, server
			}
			require.NoError(t, breaks.SetLinger(0))
			require.NoError(t, breaks.Close())
			_, err = io.ReadAll(other)
			require.ErrorIs(t, err, syscall.ECONNRESET)
		})
	}
	beside[0].Says("connection reset by peer")
	beside[1].Says("connection reset by peer")
}

// If no server is there, the client's connection breaks.
func TestNobody(t *testing.T) {
	ln, _ := listen(t)
	address, beside := pair(t, ln.Addr())
	require.NoError(t, ln.Close())
	requireReset(t, address)
	beside[0].Says("client .*: .*connection refused")

	beside[0].Kill()
	requireReset(t, address)
}

// requireReset requires that a connection to an address breaks, perhaps before
// it is seen to be made.
func requireReset(t *testing.T, address string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_, err = io.ReadAll(bounded(t, conn))
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

// A proxy that is interrupted breaks its connections. So does one that dies,
// except that the system may close its TCP connection in an orderly way.
func TestProxyEnds(t *testing.T) {
	ln, next := listen(t)
	for _, signal := range []os.Signal{os.Kill, os.Interrupt} {
		for i := range 2 {
			address, beside := pair(t, ln.Addr())
			client := dial(t, address)
			server := next()
			_, err := server.Write([]byte("hello"))
			require.NoError(t, err)
			_, err = io.ReadFull(client, make([]byte, 5))
			require.NoError(t, err)
			beside[i].Signal(signal)
			for k, conn := range []net.Conn{server, client} { // of the two proxies
				_, err = io.ReadAll(conn)
				if k != i || signal != os.Kill {
					require.ErrorIs(t, err, syscall.ECONNRESET, "%v proxy %d", signal, i)
				}
			}
		}
	}
}
