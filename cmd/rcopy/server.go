// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// serve stores the files of all clients until ctx ends.
func (o *options) serve(ctx context.Context, out program.Output) (err error) {
	ln, err := o.listen(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer func() {
		stop()
		err = errors.Join(err, ln.Close())
	}()
	var clients sync.WaitGroup
	defer clients.Wait()
	out.Printf("waiting for connections at %v\n", ln.Addr())
	for {
		conn, err := ln.Accept()
		if ctx.Err() != nil {
			return nil // the user has ended the server
		}
		if err != nil {
			return err
		}
		clients.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
			s := &session{conn: conn, create: create, done: func(path string, n int64) {
				out.Printf("client %v: %s, %d bytes\n", conn.RemoteAddr(), path, n)
			}}
			if err := s.serve(); err != nil && ctx.Err() == nil {
				fmt.Fprintf(out.Stderr, "rcopy: client %v: %v\n", conn.RemoteAddr(), err)
			}
		})
	}
}

// create opens a file for writing, as C's server does.
func create(path string, perm fs.FileMode) (io.WriteCloser, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, perm)
}

// session is the server's part of a connection. The client may open a file,
// write it and close it, and do so again for further files.
type session struct {
	conn   io.ReadWriter
	create func(path string, perm fs.FileMode) (io.WriteCloser, error)
	done   func(path string, n int64) // called for each file that is complete

	file    io.WriteCloser // the open file; nil if there is none
	path    string
	size    int64
	written bool
}

// serve answers the client until the client ends the connection or sends a
// wrong command.
func (s *session) serve() (err error) {
	defer func() {
		if s.file != nil {
			err = errors.Join(err, fmt.Errorf("%s is incomplete", s.path), s.file.Close())
		}
	}()
	for {
		h, err := readHeader(s.conn)
		if errors.Is(err, io.EOF) && s.file == nil {
			return nil
		}
		if err != nil {
			return noEOF(err)
		}
		err = s.do(h)
		answer := header{command: h.command | answered, data: status(err), id: h.id}
		if _, sendErr := s.conn.Write(answer.marshal(nil)); sendErr != nil || err != nil {
			return errors.Join(err, sendErr)
		}
	}
}

// do executes a command of the client. An error ends the connection, as with
// C's server.
func (s *session) do(h header) error {
	body, err := h.readBody(s.conn)
	if err != nil {
		return err
	}
	switch h.command {
	case open:
		return s.open(body, fs.FileMode(h.data).Perm())
	case write:
		return s.write(body)
	case closing:
		return s.close()
	}
	return fmt.Errorf("%v: %w", h.command, syscall.EINVAL)
}

func (s *session) open(body []byte, perm fs.FileMode) (err error) {
	if s.file != nil {
		return fmt.Errorf("%v while %s is open: %w", open, s.path, syscall.EBUSY)
	}
	if s.path, err = parseOpen(body); err != nil {
		return err
	}
	s.size, s.written = 0, false
	s.file, err = s.create(s.path, perm)
	if err != nil {
		s.file = nil // create may return an interface with a nil pointer, which is not nil
	}
	return err
}

// bufferLen is the number of bytes written to a file at a time.
const bufferLen = 256 << 10

func (s *session) write(body []byte) (err error) {
	if s.file == nil || s.written {
		return fmt.Errorf("%v without %v: %w", write, open, syscall.EINVAL)
	}
	if s.size, err = parseWrite(body); err != nil {
		return err
	}
	s.written = true
	in := io.LimitReader(s.conn, s.size)
	n, err := io.CopyBuffer(struct{ io.Writer }{s.file}, in, make([]byte, min(max(s.size, 1), bufferLen)))
	if err == nil && n < s.size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("store %s: failed after %d bytes of %d: %w", s.path, n, s.size, err)
	}
	return nil
}

func (s *session) close() error {
	if s.file == nil {
		return nil // C's server, too, reports success
	}
	err := s.file.Close()
	s.file = nil
	if err == nil {
		s.done(s.path, s.size)
	}
	return err
}
