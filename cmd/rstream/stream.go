// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// stream is the stream of bytes that the tests transfer. Several connections
// carry it, one after the other: each continues where the previous one ended.
type stream struct {
	*options
	connect        func(inline int) (net.Conn, error)
	conn           net.Conn
	buffer         []byte
	sent, received int // numbers of bytes sent and received over all connections
}

// hello is the number of bytes that each end sends before a test, so that both
// ends begin at the same time.
const hello = 16

// run runs tests over a connection and prints a row for each.
func (s *stream) run(ctx context.Context, out program.Output, inline int, rows ...row) (err error) {
	if s.conn, err = s.connect(inline); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.conn.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })()
	for _, r := range rows {
		s.buffer = make([]byte, max(r.size, hello))
		took, err := s.measure(r)
		if err != nil {
			return fmt.Errorf("test %s of %d bytes: %w", r.name, r.size, err)
		}
		out.Printf("%s", r.line(took))
	}
	return s.awaitEnd()
}

// awaitEnd waits until the client has closed the connection. With -T a, C's
// client takes the end of the connection for a failure, even if there is data
// left to read.
func (s *stream) awaitEnd() error {
	if s.server != "" {
		return nil
	}
	n, err := s.conn.Read(s.buffer)
	if n > 0 {
		return errors.New("the client has sent more than this end expects: do -I, -C and -S agree?")
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // the client has all data, and may exit without closing
		return nil
	}
	return err
}

// measure runs a test.
func (s *stream) measure(r row) (took time.Duration, err error) {
	if err := s.toServer(hello); err != nil {
		return 0, err
	}
	if err := s.toClient(hello); err != nil {
		return 0, err
	}
	start := time.Now()
	for range r.iterations {
		for range r.transfers {
			if err := s.toServer(r.size); err != nil {
				return 0, err
			}
		}
		for range r.transfers {
			if err := s.toClient(r.size); err != nil {
				return 0, err
			}
		}
	}
	return time.Since(start), nil
}

// toServer makes a transfer from the client to the server.
func (s *stream) toServer(size int) error {
	if s.server != "" {
		return s.send(size)
	}
	return s.receive(size)
}

// toClient makes a transfer from the server to the client.
func (s *stream) toClient(size int) error {
	if s.server != "" {
		return s.receive(size)
	}
	return s.send(size)
}

func (s *stream) send(size int) error {
	data := s.buffer[:size]
	if s.verify {
		for i := range data {
			data[i] = byte(s.sent + i)
		}
	}
	s.sent += size
	_, err := s.conn.Write(data)
	return err
}

func (s *stream) receive(size int) error {
	data := s.buffer[:size]
	if _, err := io.ReadFull(s.conn, data); err != nil {
		return err
	}
	if s.verify {
		for i, b := range data {
			if b != byte(s.received+i) {
				return fmt.Errorf("byte %d is %#x, not %#x", s.received+i, b, byte(s.received+i))
			}
		}
	}
	s.received += size
	return nil
}
