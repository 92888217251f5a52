// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestMain(m *testing.M) {
	process.BecomeMain(main)
	m.Run()
}

func TestWrongArguments(t *testing.T) {
	process.Misused(t, "", "-x", "file", "-listen :7471", "-to 192.0.2.1:7471", "-to 192.0.2.1:7471 -listen :7471 file",
		"-to 192.0.2.1:7471 file another")
}

// The peer chooses the private data: it may be short or missing.
func TestParseSize(t *testing.T) {
	for n := range 8 {
		_, err := parseSize(make([]byte, n))
		require.EqualError(t, err, fmt.Sprintf("private data of %d bytes holds no file size", n))
	}
	size, err := parseSize(append(binary.BigEndian.AppendUint64(nil, maxSize), 0, 0, 0))
	require.NoError(t, err)
	require.EqualValues(t, maxSize, size)
	_, err = parseSize(binary.BigEndian.AppendUint64(nil, maxSize+1))
	require.ErrorContains(t, err, "too large")
}

// progress writes to a terminal, not to a pipe or a file.
func TestProgress(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	bar := newProgress(w, 4)
	bar.add(4)
	bar.end()
	require.NoError(t, w.Close())
	drawn, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Empty(t, string(drawn))
	require.NoError(t, r.Close())

	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer terminal.Close()
	bar = newProgress(terminal, 4)
	require.Equal(t, terminal, bar.out)
	var out bytes.Buffer
	bar.out = &out
	bar.add(1)
	bar.add(3)
	bar.end()
	require.Contains(t, out.String(), "\r[#######                       ] 1 of 4 bytes")
	require.Contains(t, out.String(), "\r[##############################] 4 of 4 bytes")
}

// file makes a file of random bytes.
func file(t *testing.T, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	_, err := rand.NewChaCha8([32]byte{byte(size)}).Read(content)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "original")
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path, content
}

func TestCopy(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	for _, size := range []int{0, 1, chunkSize, slots*chunkSize + 1, 8<<20 + 12345} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			original, content := file(t, size)
			target := filepath.Join(t.TempDir(), "copy")
			receiver := process.StartMain(t, "-listen", d.IPv4.String()+":0", target)
			address := receiver.Prints(`listening on (\S+)\n`)
			sender := process.RunMain(t, "-to", address, original)
			require.Zero(t, sender.Wait())
			require.Zero(t, receiver.Wait())
			sum := fmt.Sprintf("%x\n", sha256.Sum256(content))
			require.Equal(t, sum, sender.Stdout())
			require.Equal(t, "listening on "+address+"\n"+sum, receiver.Stdout())
			require.Empty(t, sender.Stderr(), "no progress bar without a terminal")
			require.Empty(t, receiver.Stderr())
			copied, err := os.ReadFile(target)
			require.NoError(t, err)
			require.Equal(t, content, copied)
			require.NoFileExists(t, target+".part")
		})
	}
}

// An interrupted sender leaves no copy behind.
func TestInterrupted(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	original := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(original, nil, 0o600))
	require.NoError(t, os.Truncate(original, 1<<40)) // a sparse file
	target := filepath.Join(t.TempDir(), "copy")
	receiver := process.StartMain(t, "-listen", d.IPv4.String()+":0", target)
	sender := process.StartMain(t, "-to", receiver.Prints(`listening on (\S+)\n`), original)
	require.Eventually(t, func() bool {
		info, err := os.Stat(target + ".part")
		return err == nil && info.Size() > 0
	}, time.Minute, 10*time.Millisecond)
	sender.Signal(os.Interrupt)
	require.Equal(t, 1, sender.Wait())
	require.Contains(t, sender.Stderr(), "filecopy: interrupt signal received")
	require.Equal(t, 1, receiver.Wait())
	require.Regexp(t, "filecopy: the copy is incomplete: connection with .*: disconnected", receiver.Stderr())
	require.NoFileExists(t, target)
	require.NoFileExists(t, target+".part")
}

// A receiver without a sender exits when it is interrupted.
func TestNobody(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	target := filepath.Join(t.TempDir(), "copy")
	receiver := process.StartMain(t, "-listen", d.IPv4.String()+":0", target)
	address := receiver.Prints(`listening on (\S+)\n`)
	receiver.Signal(os.Interrupt)
	require.Equal(t, 1, receiver.Wait(), "no copy")
	require.NoFileExists(t, target+".part")

	original, _ := file(t, 1)
	sender := process.RunMain(t, "-to", address, original)
	require.Equal(t, 1, sender.Wait())
	require.Contains(t, sender.Stderr(), "filecopy: dial "+address+": ")
	missing := process.RunMain(t, "-to", address, original+"?")
	require.Equal(t, 1, missing.Wait())
	require.Contains(t, missing.Stderr(), "no such file")
}

// A sender's mistake ends the receiver, without a copy.
func TestBadSender(t *testing.T) {
	d := testdevice.Require(t)
	d.Have(t, testdevice.Immediate)
	for name, tt := range map[string]struct {
		size uint64
		send func(ctx context.Context, conn *rdmacm.Conn, memory *ibverbs.MR) error
		want string
	}{
		"checksum": {0, func(ctx context.Context, conn *rdmacm.Conn, memory *ibverbs.MR) error {
			return conn.Send(ctx, memory.Sub(0, sha256.Size))
		}, "the copy differs: its checksum is e3b0c442"},
		"no checksum": {0, func(ctx context.Context, conn *rdmacm.Conn, _ *ibverbs.MR) error {
			return conn.Send(ctx)
		}, "the copy differs"},
		"chunk": {1, func(ctx context.Context, conn *rdmacm.Conn, _ *ibverbs.MR) error {
			return conn.SendImm(ctx, 1)
		}, "the copy is incomplete: unexpected chunk 1 of 0 bytes, for a file of 1 bytes"},
		"length": {2, func(ctx context.Context, conn *rdmacm.Conn, memory *ibverbs.MR) error {
			var window ibverbs.RemoteBuffer
			return errors.Join(window.UnmarshalBinary(conn.PeerData()), conn.WriteImm(ctx, window, 0, memory.Sub(0, 1)))
		}, ": unexpected chunk 0 of 1 bytes, for a file of 2 bytes"},
		"end":  {1, func(context.Context, *rdmacm.Conn, *ibverbs.MR) error { return nil }, ": disconnected"},
		"size": {1<<63 + 1, nil, "file of 9223372036854775809 bytes is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(t.TempDir(), "copy")
			receiver := process.StartMain(t, "-listen", d.IPv4.String()+":0", target)
			address := receiver.Prints(`listening on (\S+)\n`)
			conn, err := rdmacm.Dial(t.Context(), address, &rdmacm.Config{PrivateData: binary.BigEndian.AppendUint64(nil, tt.size)})
			if tt.send != nil {
				require.NoError(t, err)
				memory, err := conn.Alloc(sha256.Size, 0)
				require.NoError(t, err)
				if err := tt.send(t.Context(), conn, memory); err != nil { // the receiver may have left before it acknowledged
					require.ErrorIs(t, err, syscall.ECONNRESET)
				}
				require.NoError(t, conn.Close())
			} else {
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
			}
			require.Equal(t, 1, receiver.Wait())
			require.Contains(t, receiver.Stderr(), tt.want)
			require.NoFileExists(t, target)
			require.NoFileExists(t, target+".part")
		})
	}
}
