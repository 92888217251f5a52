// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// store is a session whose files are in memory, and what has come of it.
type store struct {
	session
	perm     fs.FileMode
	file     *memory
	complete []string
}

// memory is a file.
type memory struct {
	bytes.Buffer
	room   int // bytes that fit
	closed bool
}

func (m *memory) Write(b []byte) (int, error) {
	if m.Len()+len(b) > m.room {
		return 0, syscall.ENOSPC
	}
	return m.Buffer.Write(b)
}

func (m *memory) Close() error {
	m.closed = true
	return nil
}

func newStore(conn io.ReadWriter, room int) *store {
	s := &store{}
	s.session = session{
		conn: conn,
		create: func(path string, perm fs.FileMode) (io.WriteCloser, error) {
			if strings.HasPrefix(path, "/forbidden") {
				return nil, &fs.PathError{Op: "open", Path: path, Err: syscall.EACCES}
			}
			s.perm, s.file = perm, &memory{room: room}
			return s.file, nil
		},
		done: func(path string, n int64) { s.complete = append(s.complete, fmt.Sprintf("%s %d", path, n)) },
	}
	return s
}

// end is an end of a connection that keeps the server's answers, as an rsocket
// does, for a client whose Write has failed.
type end struct {
	io.Reader
	io.WriteCloser
}

// answers are messages on their way to a client.
type answers chan []byte

func (a answers) Write(b []byte) (int, error) {
	a <- bytes.Clone(b)
	return len(b), nil
}

func (a answers) Read(b []byte) (int, error) {
	answer, ok := <-a
	if !ok {
		return 0, io.EOF
	}
	return copy(b, answer), nil // all of it, as readHeader asks for
}

func (a answers) Close() error {
	close(a)
	return nil
}

// serving starts a session at the other end of a connection, and returns that
// and what the session ends with.
func serving(t *testing.T, room int) (end, *store, <-chan error) {
	t.Helper()
	in, out := io.Pipe()
	back := make(answers, 10)
	client, server := end{back, out}, end{in, back}
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(server, room)
	ended := make(chan error, 1)
	go func() {
		err := s.serve()
		_ = server.Close()
		_ = in.CloseWithError(syscall.ECONNRESET)
		ended <- err
	}()
	return client, s, ended
}

// original is a file of a size.
func original(t *testing.T, size int) (file *os.File, info os.FileInfo, content []byte) {
	t.Helper()
	content = make([]byte, size)
	for i := range content {
		content[i] = byte(i * 7 / 3)
	}
	path := filepath.Join(t.TempDir(), "original")
	require.NoError(t, os.WriteFile(path, content, 0o640))
	file, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	info, err = file.Stat()
	require.NoError(t, err)
	return file, info, content
}

func TestTransfer(t *testing.T) {
	for _, size := range []int{0, 1, headerLen, bufferLen - 1, bufferLen, 3*bufferLen + 17} {
		for _, path := range []string{"copy", "/a/longer/path", strings.Repeat("p", maxPath)} {
			conn, s, ended := serving(t, math.MaxInt)
			file, info, content := original(t, size)
			var out bytes.Buffer
			_, err := transfer(program.Output{Stdout: &out}, conn, file, info, path)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			require.NoError(t, <-ended)
			require.Equal(t, "opening...transferring...closing...done\n", out.String())
			require.Equal(t, []string{fmt.Sprintf("%s %d", path, size)}, s.complete)
			require.Equal(t, fs.FileMode(0o640), s.perm)
			require.True(t, s.file.closed)
			require.True(t, bytes.Equal(content, s.file.Bytes()), "%d bytes", size)
		}
	}
}

// One connection may have several files, as in C.
func TestTransferSeveral(t *testing.T) {
	conn, s, ended := serving(t, math.MaxInt)
	for i, size := range []int{5, 0, 7} {
		file, info, content := original(t, size)
		_, err := transfer(program.Output{Stdout: io.Discard}, conn, file, info, fmt.Sprint("copy", i))
		require.NoError(t, err)
		require.Equal(t, string(content), s.file.String())
	}
	require.NoError(t, conn.Close())
	require.NoError(t, <-ended)
	require.Equal(t, []string{"copy0 5", "copy1 0", "copy2 7"}, s.complete)
}

func TestTransferFails(t *testing.T) {
	for _, tt := range []struct {
		name, path string
		size, room int
		want       error
		text       string
	}{
		{"file cannot be opened", "/forbidden/copy", 5, 5, syscall.EACCES, "OPEN: the server says: permission denied"},
		{"no room at the start", "copy", 3 * bufferLen, 0, syscall.ENOSPC, "the server says: no space left"},
		{"no room in the middle", "copy", 3 * bufferLen, bufferLen, syscall.ENOSPC, "the server says: no space left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn, s, ended := serving(t, tt.room)
			file, info, _ := original(t, tt.size)
			_, err := transfer(program.Output{Stdout: io.Discard}, conn, file, info, tt.path)
			require.ErrorIs(t, err, tt.want)
			require.ErrorContains(t, err, tt.text)
			require.ErrorIs(t, <-ended, tt.want)
			require.Empty(t, s.complete)
			if s.file != nil {
				require.True(t, s.file.closed)
			}
		})
	}
}

// A file that shrinks meanwhile is no copy.
func TestFileShrinks(t *testing.T) {
	conn, s, ended := serving(t, math.MaxInt)
	_, info, content := original(t, 100)
	_, err := transfer(program.Output{Stdout: io.Discard}, conn, bytes.NewReader(content[:99]), info, "copy")
	require.EqualError(t, err, "the file has ended after 99 bytes of 100")
	require.NoError(t, conn.Close())
	err = <-ended
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, "copy is incomplete")
	require.Empty(t, s.complete)
}

// What a client sends that breaks the rules gets C's status, and ends its
// connection.
func TestSessionRefuses(t *testing.T) {
	opened := header{command: open, data: 0o100644}.marshal(openBody("copy"))
	join := func(messages ...[]byte) []byte { return bytes.Join(messages, nil) }
	for _, tt := range []struct {
		name    string
		send    []byte
		answers []uint32
		text    string
	}{
		{"unknown command", header{command: 7, id: 9}.marshal(nil), []uint32{uint32(syscall.EINVAL)}, "command 0x7"},
		{"an answer", header{command: open | answered}.marshal(nil), []uint32{uint32(syscall.EINVAL)}, "answer to OPEN"},
		{"another version", join([]byte{1}, header{command: open}.marshal(nil)[1:]), nil, "message of version 1 with 16 bytes"},
		{"short", []byte{0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, nil, "message of version 0 with 0 bytes"},
		{"no path", header{command: open}.marshal(nil), []uint32{uint32(syscall.EINVAL)}, "no path in the 0 bytes"},
		{"path without end", header{command: open}.marshal([]byte("copycopy")), []uint32{uint32(syscall.EINVAL)}, "no path in the 8 bytes"},
		{"empty path", header{command: open}.marshal(make([]byte, 8)), []uint32{uint32(syscall.EINVAL)}, "no path in the 8 bytes"},
		{"opened twice", join(opened, opened), []uint32{0, uint32(syscall.EBUSY)}, "OPEN while copy is open"},
		{"not opened", header{command: write}.marshal(writeBody(1)), []uint32{uint32(syscall.EINVAL)}, "WRITE without OPEN"},
		{"written twice", join(opened, header{command: write}.marshal(writeBody(1)), []byte("x"), header{command: write}.marshal(writeBody(1))), []uint32{0, 0, uint32(syscall.EINVAL)}, "WRITE without OPEN"},
		{"no size", join(opened, header{command: write}.marshal(nil)), []uint32{0, uint32(syscall.EINVAL)}, "WRITE message of 16 bytes: expected 24"},
		{"negative size", join(opened, header{command: write}.marshal(writeBody(-1))), []uint32{0, uint32(syscall.EFBIG)}, "file of 18446744073709551615 bytes"},
		{"not complete", join(opened, header{command: write}.marshal(writeBody(math.MaxInt64)), []byte("x")), []uint32{0, uint32(syscall.EIO)}, "copy is incomplete"},
		{"not closed", opened, []uint32{0}, "copy is incomplete"},
		{"half a header", opened[:headerLen-1], nil, "unexpected EOF"},
		{"half a message", opened[:headerLen+1], []uint32{uint32(syscall.EIO)}, "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := &exchange{Reader: bytes.NewReader(tt.send)}
			s := newStore(conn, 100)
			require.ErrorContains(t, s.serve(), tt.text)
			require.Empty(t, s.complete)
			var statuses []uint32
			for conn.Len() > 0 {
				h, err := readHeader(&conn.Buffer)
				require.NoError(t, err)
				require.NotZero(t, h.command&answered)
				require.EqualValues(t, headerLen, h.len)
				statuses = append(statuses, h.data)
			}
			require.Equal(t, tt.answers, statuses)
		})
	}
	conn := &exchange{Reader: bytes.NewReader(header{command: closing, id: 77}.marshal(nil))}
	require.NoError(t, newStore(conn, 0).serve(), "nothing is open, which C does not mind either")
	require.Equal(t, header{command: closing | answered, id: 77}.marshal(nil), conn.Bytes())
}

// exchange is a connection whose input is known before.
type exchange struct {
	io.Reader
	bytes.Buffer
}

func (e *exchange) Read(b []byte) (int, error)  { return e.Reader.Read(b) }
func (e *exchange) Write(b []byte) (int, error) { return e.Buffer.Write(b) }

func TestReadAnswer(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer []byte
		want   error
		text   string
	}{
		{"no space", header{command: write | answered, data: 28}.marshal(nil), syscall.ENOSPC, "WRITE: the server says: no space left on device"},
		{"C's negative status", header{command: write | answered, data: math.MaxUint32}.marshal(nil), nil, "WRITE: the server failed with status 0xffffffff"},
		{"another command", header{command: open | answered}.marshal(nil), nil, "answer to OPEN of 16 bytes: expected the answer to WRITE"},
		{"no answer", header{command: write}.marshal(nil), nil, "WRITE of 16 bytes: expected the answer to WRITE"},
		{"too long", header{command: write | answered}.marshal([]byte{0}), nil, "answer to WRITE of 17 bytes: expected"},
		{"nothing", nil, io.ErrUnexpectedEOF, "unexpected EOF"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := readAnswer(bytes.NewReader(tt.answer), write)
			require.ErrorContains(t, err, tt.text)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
		})
	}
	require.NoError(t, readAnswer(bytes.NewReader(header{command: write | answered}.marshal(nil)), write))
}

// The messages are those of C's structs.
func TestMarshal(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("a big-endian host has other bytes")
	}
	require.Equal(t, []byte("\x00\x01\x18\x00\xa4\x81\x00\x00\x08\x07\x06\x05\x04\x03\x02\x01copy\x00\x00\x00\x00"),
		header{command: open, data: 0o100644, id: 0x0102030405060708}.marshal(openBody("copy")))
	require.Equal(t, []byte("\x00\x03\x18\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00"),
		header{command: write}.marshal(writeBody(1<<32)))
	for n, want := range map[int]int{1: 8, 7: 8, 8: 16, 9: 16} {
		require.Len(t, openBody(strings.Repeat("x", n)), want, n)
	}
	require.LessOrEqual(t, headerLen+len(openBody(strings.Repeat("x", maxPath))), math.MaxUint16)
}

func TestStatus(t *testing.T) {
	require.Zero(t, status(nil))
	require.EqualValues(t, syscall.EACCES, status(&fs.PathError{Err: syscall.EACCES}))
	require.EqualValues(t, syscall.EIO, status(errors.New("other")))
}

// Whatever a client sends, the session ends, has no file open, and keeps to its
// limits.
func FuzzSession(f *testing.F) {
	opened := header{command: open, data: 0o644}.marshal(openBody("copy"))
	written := append(header{command: write}.marshal(writeBody(3)), "abc"...)
	closed := header{command: closing}.marshal(nil)
	for _, messages := range [][][]byte{
		{opened, written, closed},
		{opened, closed},
		{closed, opened},
		{opened, opened},
		{written},
		{opened, written[:20]},
		{opened[:20]},
		{header{command: open}.marshal(openBody("/forbidden"))},
	} {
		f.Add(bytes.Join(messages, nil))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		conn := &exchange{Reader: bytes.NewReader(sent)}
		s := newStore(conn, 1<<20)
		err := s.serve()
		if s.file != nil {
			require.True(t, s.file.closed)
			require.LessOrEqual(t, s.file.Len(), len(sent))
		}
		require.Zero(t, conn.Len()%headerLen)
		if len(s.complete) == 0 && len(sent) > 0 && conn.Len() == 0 {
			require.Error(t, err)
		}
	})
}
