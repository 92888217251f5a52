// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"syscall"
)

// command is the command of a message. An answer has the bit answered as well.
type command uint8

const (
	open     command = 1
	closing  command = 2
	write    command = 3
	answered command = 0x80
)

func (c command) String() string {
	name, known := map[command]string{open: "OPEN", closing: "CLOSE", write: "WRITE"}[c&^answered]
	switch {
	case !known:
		return fmt.Sprintf("command %#x", uint8(c))
	case c&answered != 0:
		return "answer to " + name
	}
	return name
}

// header is the beginning of every message. Its numbers are in the byte order
// of the host, as in C, so hosts of different byte order cannot communicate.
type header struct {
	command command
	len     uint16 // number of bytes of the whole message
	data    uint32 // mode of the file, or status of an answer: 0 or an errno
	id      uint64 // number that the answer repeats
}

// The sizes of messages, the first of which is also that of CLOSE and of
// answers.
const (
	headerLen = 16
	writeLen  = headerLen + 8
)

// marshal returns the message: the header, followed by body.
func (h header) marshal(body []byte) []byte {
	b := []byte{0, byte(h.command)} // of version 0
	b = binary.NativeEndian.AppendUint16(b, uint16(headerLen+len(body)))
	b = binary.NativeEndian.AppendUint32(b, h.data)
	b = binary.NativeEndian.AppendUint64(b, h.id)
	return append(b, body...)
}

// readHeader reads the next header. The error is io.EOF if the peer has closed
// the connection after a complete message.
func readHeader(r io.Reader) (h header, err error) {
	b := make([]byte, headerLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return h, err
	}
	h = header{
		command: command(b[1]), len: binary.NativeEndian.Uint16(b[2:]), data: binary.NativeEndian.Uint32(b[4:]), id: binary.NativeEndian.Uint64(b[8:]),
	}
	if b[0] != 0 || h.len < headerLen {
		return h, fmt.Errorf("message of version %d with %d bytes: expected version 0 and at least %d", b[0], h.len, headerLen)
	}
	return h, nil
}

// readBody reads the bytes of the message after the header.
func (h header) readBody(r io.Reader) ([]byte, error) {
	b := make([]byte, h.len-headerLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, noEOF(err)
	}
	return b, nil
}

// noEOF returns the error for a message that ended before it was complete.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxPath is the maximum length of a path in a message.
const maxPath = math.MaxUint16 - headerLen - pathUnit

// pathUnit is the unit in bytes to which a path with its final zero is padded.
const pathUnit = 8

// openBody returns the body of an OPEN message: the path, followed by zeros.
func openBody(path string) []byte {
	return append([]byte(path), make([]byte, pathUnit-len(path)%pathUnit)...)
}

// parseOpen returns the path in the body of an OPEN message.
func parseOpen(body []byte) (string, error) {
	path, _, ended := bytes.Cut(body, []byte{0})
	if !ended || len(path) == 0 {
		return "", fmt.Errorf("OPEN message: no path in the %d bytes of its body: %w", len(body), syscall.EINVAL)
	}
	return string(path), nil
}

// writeBody returns the body of a WRITE message: the size of the data, which
// follows the message.
func writeBody(size int64) []byte { return binary.NativeEndian.AppendUint64(nil, uint64(size)) }

// parseWrite returns the size in the body of a WRITE message.
func parseWrite(body []byte) (int64, error) {
	if len(body) != writeLen-headerLen {
		return 0, fmt.Errorf("WRITE message of %d bytes: expected %d: %w", headerLen+len(body), writeLen, syscall.EINVAL)
	}
	size := binary.NativeEndian.Uint64(body)
	if size > math.MaxInt64 {
		return 0, fmt.Errorf("file of %d bytes: %w", size, syscall.EFBIG)
	}
	return int64(size), nil
}

// status returns the status in an answer for an error.
func status(err error) uint32 {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return uint32(errno)
	}
	return uint32(syscall.EIO)
}

// maxErrno is the largest errno of Linux.
const maxErrno = 4095

// readAnswer reads the answer to a command, and returns the error that the
// answer reports.
func readAnswer(r io.Reader, to command) error {
	h, err := readHeader(r)
	switch {
	case err != nil:
		return noEOF(err)
	case h.command != to|answered || h.len != headerLen:
		return fmt.Errorf("%v of %d bytes: expected the answer to %v", h.command, h.len, to)
	case h.data > maxErrno: // C's server may send the number of bytes that it has received
		return fmt.Errorf("%v: the server failed with status %#x", to, h.data)
	case h.data != 0:
		return fmt.Errorf("%v: the server says: %w", to, syscall.Errno(h.data))
	}
	return nil
}
