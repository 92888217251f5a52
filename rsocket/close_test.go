// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rsocket"
)

// Whatever is called when Close comes says that the connection is closed, or
// works.
func TestCallsMeetClose(t *testing.T) {
	cmtest.ManyProcessors(t)
	ln := listen(t, rsocket.Config{ReadBuffer: 4096, WriteBuffer: 4096, SendQueue: 16, RecvQueue: 16})
	calls := map[string]func(c *rsocket.Conn) error{
		"ReadFrom":  func(c *rsocket.Conn) error { _, err := c.ReadFrom(bytes.NewReader(make([]byte, 100))); return err },
		"ReadFrom2": func(c *rsocket.Conn) error { _, err := c.ReadFrom(bytes.NewReader(make([]byte, 100_000))); return err },
		"Read":      func(c *rsocket.Conn) error { _, err := c.Read(make([]byte, 100)); return err },
		"WriteTo":   func(c *rsocket.Conn) error { _, err := c.WriteTo(io.Discard); return err },
		"Peek":      func(c *rsocket.Conn) error { _, err := c.Peek(50); return err },
		"Discard":   func(c *rsocket.Conn) error { _, err := c.Discard(50); return err },
		"Write":     func(c *rsocket.Conn) error { _, err := c.Write(make([]byte, 10_000)); return err },
		"Buffers":   func(c *rsocket.Conn) error { _, err := c.WriteBuffers(&net.Buffers{{}, {1}, nil, {2, 3}}); return err },
		"deadline":  func(c *rsocket.Conn) error { return c.SetDeadline(time.Now().Add(time.Hour)) },
		"Alive":     func(c *rsocket.Conn) error { c.Buffered(); return c.SetKeepAlivePeriod(time.Millisecond) },
		"Linger":    func(c *rsocket.Conn) error { return c.SetLinger(0) },
	}
	for range 4 {
		a, b := pairOn(t, ln, rsocket.Config{ReadBuffer: 4096, WriteBuffer: 4096, SendQueue: 16, RecvQueue: 16, KeepAlive: time.Millisecond})
		var all sync.WaitGroup
		for _, c := range []*rsocket.Conn{a, b} {
			for name, call := range calls {
				for range 2 {
					all.Go(func() {
						for {
							err := call(c)
							if errors.Is(err, net.ErrClosed) {
								return
							}
							if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
								t.Errorf("%s: %v", name, err)
								return
							}
						}
					})
				}
			}
		}
		for range rand.Intn(100) {
			runtime.Gosched()
		}
		for _, c := range []*rsocket.Conn{a, b} {
			for range 3 {
				all.Go(func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
	}
}

// Streams come whole through the smallest queues, in both directions at once,
// by all ways to read and write.
func TestSmallestQueues(t *testing.T) {
	cmtest.ManyProcessors(t)
	small := rsocket.Config{ReadBuffer: 1, WriteBuffer: 1, SendQueue: 1, RecvQueue: 1, KeepAlive: 2 * time.Millisecond, MaxInline: -1}
	odd := rsocket.Config{ReadBuffer: 2051, WriteBuffer: 4097, SendQueue: 17, RecvQueue: 19, KeepAlive: time.Millisecond, Spin: -1}
	for i, configs := range [][2]rsocket.Config{{small, small}, {small, {}}, {odd, small}, {odd, odd}} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			ln := listen(t, configs[1])
			var all sync.WaitGroup
			var conns [][2]*rsocket.Conn
			for range 4 {
				a, b := pairOn(t, ln, configs[0])
				conns = append(conns, [2]*rsocket.Conn{a, b})
			}
			for n, pair := range conns {
				for k := range 2 {
					from, to := pair[k], pair[1-k]
					data := bytesOf(60_000, uint64(n))
					all.Go(func() {
						if err := pour(from, data, n+k); err != nil {
							t.Errorf("write: %v", err)
						}
					})
					all.Go(func() {
						got, err := scoop(to, n)
						if err != nil || !bytes.Equal(got, data) {
							t.Errorf("read %d: %v, same %v", len(got), err, bytes.Equal(got, data))
						}
					})
				}
			}
			all.Wait()
		})
	}
}

func pour(c *rsocket.Conn, data []byte, how int) error {
	rnd := rand.New(rand.NewSource(int64(how)))
	for len(data) > 0 {
		n := min(len(data), 1+rnd.Intn(1+rnd.Intn(9000)))
		part := data[:n]
		data = data[n:]
		var err error
		switch rnd.Intn(4) {
		case 0:
			_, err = c.Write(part)
		case 1:
			_, err = c.ReadFrom(bytes.NewReader(part))
		case 2:
			_, err = c.WriteBuffers(&net.Buffers{nil, part[:n/2], {}, part[n/2:], nil})
		case 3:
			for i := range part {
				if i > 30 {
					_, err = c.Write(part[i:])
					break
				}
				if _, err = c.Write(part[i : i+1]); err != nil {
					break
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return c.CloseWrite()
}

func scoop(c *rsocket.Conn, how int) ([]byte, error) {
	var got bytes.Buffer
	rnd := rand.New(rand.NewSource(int64(how)))
	for {
		switch rnd.Intn(3) {
		case 0:
			b := make([]byte, 1+rnd.Intn(3000))
			n, err := c.Read(b)
			got.Write(b[:n])
			if err == io.EOF {
				return got.Bytes(), nil
			} else if err != nil {
				return got.Bytes(), err
			}
		case 1:
			b, err := c.Peek(1 + rnd.Intn(1000))
			got.Write(b)
			if n, err := c.Discard(len(b)); n != len(b) || err != nil {
				return got.Bytes(), fmt.Errorf("discard %d %d: %w", len(b), n, err)
			}
			if err == io.EOF {
				return got.Bytes(), nil
			} else if err != nil {
				return got.Bytes(), err
			}
		case 2:
			w := &limited{&got, 1 + rnd.Intn(5000)}
			_, err := c.WriteTo(w)
			if err == nil {
				return got.Bytes(), nil
			} else if !errors.Is(err, errFull) {
				return got.Bytes(), err
			}
		}
	}
}

var errFull = errors.New("full")

type limited struct {
	w io.Writer
	n int
}

func (l *limited) Write(b []byte) (int, error) {
	n := min(len(b), l.n)
	l.n -= n
	_, _ = l.w.Write(b[:n])
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}

// The last completions may be handled after Close.
func TestCompletionsAfterClose(t *testing.T) {
	// Without a pool, with which Close waits until they are handled.
	ln, err := rsocket.Listen("rdma", netip.AddrPortFrom(needDevice(t).IPv4, 0).String())
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	conn, err := rsocket.Dial("rdma", ln.Addr().String())
	require.NoError(t, err)
	a, b := closedWith(t, conn), acceptOne(t, ln)
	echo(t, a, b)
	_, err = a.Write([]byte{1})
	require.NoError(t, err)
	require.NoError(t, b.SetLinger(0))
	require.NoError(t, rsocket.HandleAfterClose(b))
}
