// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rsocket"
)

// sizesOf are configs, in whose buffers messages wrap around.
var sizesOf = map[string]rsocket.Config{
	"middling": {ReadBuffer: 1 << 14, WriteBuffer: 1 << 14},
	"small":    {ReadBuffer: 3001, WriteBuffer: 1, SendQueue: 1, RecvQueue: 1, MaxInline: -1},
	"odd":      {ReadBuffer: 5000, WriteBuffer: 4999, SendQueue: 20, RecvQueue: 17, MaxInline: 8},
}

// Each way to write and each way to read moves every byte.
func TestCopies(t *testing.T) {
	data := bytesOf(35_000, 3)
	writes := map[string]func(c *rsocket.Conn) (int64, error){
		"Write": func(c *rsocket.Conn) (int64, error) {
			n, err := c.Write(data)
			return int64(n), err
		},
		"WriteBuffers": func(c *rsocket.Conn) (int64, error) {
			v := net.Buffers{nil, data[:1], data[1:100], {}, data[100:30_000], data[30_000:], nil}
			n, err := c.WriteBuffers(&v)
			if err == nil && len(v) != 0 {
				err = errors.New("buffers are left")
			}
			return n, err
		},
		"ReadFrom": func(c *rsocket.Conn) (int64, error) { return c.ReadFrom(bytes.NewReader(data)) },
		"ReadFrom in pieces": func(c *rsocket.Conn) (int64, error) {
			return c.ReadFrom(iotest.HalfReader(iotest.DataErrReader(bytes.NewReader(data))))
		},
	}
	reads := map[string]func(c *rsocket.Conn) ([]byte, error){
		"Read": func(c *rsocket.Conn) ([]byte, error) { return io.ReadAll(struct{ io.Reader }{c}) },
		"WriteTo": func(c *rsocket.Conn) ([]byte, error) {
			var b bytes.Buffer
			_, err := c.WriteTo(struct{ io.Writer }{&b})
			return b.Bytes(), err
		},
		"Peek and Discard": func(c *rsocket.Conn) (all []byte, err error) {
			for {
				b, err := c.Peek(100)
				all = append(all, b...)
				if n, err := c.Discard(len(b)); n != len(b) || err != nil {
					return all, err
				}
				if err == io.EOF {
					return all, nil
				}
				if err != nil {
					return all, err
				}
			}
		},
	}
	for size, config := range sizesOf {
		for how, write := range writes {
			for how2, read := range reads {
				if how != "Write" && how2 != "Read" { // each of both is tested
					continue
				}
				t.Run(size+"/"+how+"/"+how2, func(t *testing.T) {
					a, b := pair(t, config, config)
					wrote := inBackground(func() error {
						n, err := write(a)
						if err == nil && n != int64(len(data)) {
							err = errors.New("another number of bytes")
						}
						return errors.Join(err, a.CloseWrite())
					})
					got, err := read(b)
					require.NoError(t, err)
					require.True(t, bytes.Equal(data, got))
					require.NoError(t, <-wrote)
				})
			}
		}
	}
}

func TestPeek(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{ReadBuffer: 4096})
	_, err := a.Write([]byte("hello, world"))
	require.NoError(t, err)
	got, err := b.Peek(5)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	got, err = b.Peek(12)
	require.NoError(t, err)
	require.Equal(t, "hello, world", string(got))
	require.Equal(t, 12, b.Buffered())
	n, err := b.Discard(7)
	require.NoError(t, err)
	require.Equal(t, 7, n)
	_, err = b.Peek(2049)
	require.Equal(t, bufio.ErrBufferFull, err)
	_, err = b.Peek(-1)
	require.Equal(t, bufio.ErrNegativeCount, err)
	_, err = b.Discard(-1)
	require.Equal(t, bufio.ErrNegativeCount, err)
	require.NoError(t, a.Close())
	got, err = b.Peek(100)
	require.Equal(t, io.EOF, err)
	require.Equal(t, "world", string(got))
	n, err = b.Discard(100)
	require.Equal(t, io.EOF, err)
	require.Equal(t, 5, n)
}

// Errors of the other side of a copy come back, and what was moved before
// counts.
func TestCopyErrors(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	mine := errors.New("mine")
	n, err := a.ReadFrom(io.MultiReader(strings.NewReader("hello"), iotest.ErrReader(mine)))
	require.Equal(t, mine, err)
	require.EqualValues(t, 5, n)
	n, err = b.WriteTo(writer(func([]byte) (int, error) { return 2, mine }))
	require.Equal(t, mine, err)
	require.EqualValues(t, 2, n)
	n, err = b.WriteTo(writer(func([]byte) (int, error) { return 1, nil }))
	require.Equal(t, io.ErrShortWrite, err)
	require.EqualValues(t, 1, n)
	got := make([]byte, 2)
	_, err = io.ReadFull(b, got)
	require.NoError(t, err)
	require.Equal(t, "lo", string(got))
	_, err = a.ReadFrom(reader(func(b []byte) (int, error) { return len(b) + 1, nil }))
	require.ErrorContains(t, err, "impossible count")
}

type (
	writer func([]byte) (int, error)
	reader func([]byte) (int, error)
)

func (f writer) Write(b []byte) (int, error) { return f(b) }
func (f reader) Read(b []byte) (int, error)  { return f(b) }

// A ReadFrom that waits for its reader does not hold up others that write, and
// a Read waits for a WriteTo only until its deadline.
func TestCopiesDoNotBlockOthers(t *testing.T) {
	a, b := pair(t, rsocket.Config{}, rsocket.Config{})
	r, w := io.Pipe()
	copying := inBackground(func() error {
		_, err := a.ReadFrom(r)
		return err
	})
	_, err := w.Write([]byte("one "))
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = io.ReadFull(b, got)
	require.NoError(t, err)
	_, err = a.Write([]byte("two "))
	require.NoError(t, err)
	_, err = a.ReadFrom(strings.NewReader("three"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, <-copying)
	require.NoError(t, a.CloseWrite())
	rest, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, "two three", string(rest))

	began, ends := make(chan struct{}), make(chan struct{})
	_, err = b.Write([]byte("hello"))
	require.NoError(t, err)
	copying = inBackground(func() error {
		_, err := a.WriteTo(writer(func(b []byte) (int, error) {
			close(began)
			<-ends
			return len(b), errors.New("enough " + string(b))
		}))
		return err
	})
	<-began
	reading := inBackground(func() error {
		_, err := a.Read(got)
		return err
	})
	require.NoError(t, a.Close())
	isOpError(t, <-reading, "read", net.ErrClosed)
	close(ends)
	require.EqualError(t, <-copying, "enough hello", "the memory is still there")
}
