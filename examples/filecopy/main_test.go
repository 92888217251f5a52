package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/selfexec"
	"github.com/verbena-go/verbena/internal/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestMain(m *testing.M) { selfexec.Main(m, main) }

func TestWrongArguments(t *testing.T) {
	selfexec.Misused(t, "", "-x", "file", "-listen :7471", "-to 192.0.2.1:7471", "-to 192.0.2.1:7471 -listen :7471 file",
		"-to 192.0.2.1:7471 file another")
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
	for _, size := range []int{0, 1, chunkSize, slots*chunkSize + 1, 8<<20 + 12345} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			original, content := file(t, size)
			target := filepath.Join(t.TempDir(), "copy")
			receiver := selfexec.Start(t, "-listen", d.IPv4.String()+":0", target)
			address := receiver.Prints(`listening on (\S+)\n`)
			sender := selfexec.Run(t, "-to", address, original)
			require.Zero(t, sender.Wait())
			require.Zero(t, receiver.Wait())
			sum := fmt.Sprintf("%x\n", sha256.Sum256(content))
			require.Equal(t, sum, sender.Stdout())
			require.Equal(t, "listening on "+address+"\n"+sum, receiver.Stdout())
			if size > 0 {
				end := fmt.Sprintf("[##############################] %d of %d bytes", size, size)
				require.Contains(t, sender.Stderr(), end)
				require.Contains(t, receiver.Stderr(), end)
			}
			copied, err := os.ReadFile(target)
			require.NoError(t, err)
			require.Equal(t, content, copied)
			require.NoFileExists(t, target+".part")
		})
	}
}

// A sender that is interrupted leaves no copy behind.
func TestInterrupted(t *testing.T) {
	d := testdevice.Require(t)
	original := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(original, nil, 0o600))
	require.NoError(t, os.Truncate(original, 1<<40)) // without any blocks
	target := filepath.Join(t.TempDir(), "copy")
	receiver := selfexec.Start(t, "-listen", d.IPv4.String()+":0", target)
	sender := selfexec.Start(t, "-to", receiver.Prints(`listening on (\S+)\n`), original)
	sender.Says("of 1099511627776 bytes")
	sender.Signal(os.Interrupt)
	require.Equal(t, 1, sender.Wait())
	require.Contains(t, sender.Stderr(), "filecopy: interrupt signal received")
	require.Equal(t, 1, receiver.Wait())
	require.Contains(t, receiver.Stderr(), "filecopy: the copy is not whole: disconnected")
	require.NoFileExists(t, target)
	require.NoFileExists(t, target+".part")
}

// A receiver that nobody has sent to ends when it is interrupted.
func TestNobody(t *testing.T) {
	d := testdevice.Require(t)
	target := filepath.Join(t.TempDir(), "copy")
	receiver := selfexec.Start(t, "-listen", d.IPv4.String()+":0", target)
	address := receiver.Prints(`listening on (\S+)\n`)
	receiver.Signal(os.Interrupt)
	require.Equal(t, 1, receiver.Wait(), "there is no copy")
	require.NoFileExists(t, target+".part")

	original, _ := file(t, 1)
	sender := selfexec.Run(t, "-to", address, original)
	require.Equal(t, 1, sender.Wait())
	require.Contains(t, sender.Stderr(), "filecopy: dial "+address+": ")
	missing := selfexec.Run(t, "-to", address, original+"?")
	require.Equal(t, 1, missing.Wait())
	require.Contains(t, missing.Stderr(), "no such file")
}

// What a sender gets wrong ends the receiver, with no copy.
func TestBadSender(t *testing.T) {
	d := testdevice.Require(t)
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
		}, "the copy is not whole: a chunk of 0 bytes with number 1 in a file of 1 bytes"},
		"length": {2, func(ctx context.Context, conn *rdmacm.Conn, memory *ibverbs.MR) error {
			var window ibverbs.RemoteBuffer
			return errors.Join(window.UnmarshalBinary(conn.PeerData()), conn.WriteImm(ctx, window, 0, memory.Sub(0, 1)))
		}, "a chunk of 1 bytes with number 0 in a file of 2 bytes"},
		"end":  {1, func(context.Context, *rdmacm.Conn, *ibverbs.MR) error { return nil }, "the copy is not whole: disconnected"},
		"size": {1<<63 + 1, nil, "wants to send 9223372036854775809 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			target := filepath.Join(t.TempDir(), "copy")
			receiver := selfexec.Start(t, "-listen", d.IPv4.String()+":0", target)
			address := receiver.Prints(`listening on (\S+)\n`)
			conn, err := rdmacm.Dial(t.Context(), address, &rdmacm.Config{PrivateData: binary.BigEndian.AppendUint64(nil, tt.size)})
			if tt.send != nil {
				require.NoError(t, err)
				memory, err := conn.Alloc(sha256.Size, 0)
				require.NoError(t, err)
				require.NoError(t, tt.send(t.Context(), conn, memory))
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
