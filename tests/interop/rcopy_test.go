// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

var (
	ourRcopy   = program{"Go", true, "rcopy"}
	theirRcopy = program{"C", false, "rcopy"}
)

// copyPairs are servers and clients.
var copyPairs = [][2]program{{ourRcopy, theirRcopy}, {theirRcopy, ourRcopy}}

// copySizes are of files. VERBENA_INTEROP=all adds a gigabyte.
func copySizes() []int {
	sizes := []int{0, 1, 65536, 3<<20 + 12345}
	if os.Getenv("VERBENA_INTEROP") == "all" {
		sizes = append(sizes, 1<<30)
	}
	return sizes
}

// newFile makes a file of random bytes, and returns them.
func newFile(t *testing.T, size int) (path string, content []byte) {
	t.Helper()
	content = make([]byte, size)
	_, err := rand.NewChaCha8([32]byte{byte(size), byte(size >> 8)}).Read(content)
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "original")
	require.NoError(t, os.WriteFile(path, content, 0o751))
	return path, content
}

// Ours works with C's in both directions: files of all sizes, one after
// the other to the same server. The permissions of new files go along.
func TestRcopy(t *testing.T) {
	d := needDevice(t)
	for _, pair := range copyPairs {
		t.Run(fmt.Sprintf("%s server %s client", pair[0].name, pair[1].name), func(t *testing.T) {
			server := pair[0].start(t)
			listens(t, server)
			for _, size := range copySizes() {
				if size == 0 && !pair[1].ours {
					continue // TestRcopyEmpty
				}
				original, content := newFile(t, size)
				copied := filepath.Join(t.TempDir(), "copy")
				if size == 1 {
					require.NoError(t, os.WriteFile(copied, []byte("what was there before"), 0o751))
				}
				client := pair[1].run(t, original, d.IPv4.String()+":"+copied)
				require.Zero(t, client.Wait())
				require.Regexp(t, fmt.Sprintf(`opening\.\.\.transferring\.\.\.closing\.\.\.done\n%d bytes in `, size), client.Stdout())
				got, err := os.ReadFile(copied)
				require.NoError(t, err)
				require.True(t, bytes.Equal(content, got), "%d bytes", size)
				info, err := os.Stat(copied)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o751), info.Mode())
			}
			require.False(t, server.Ended())
			if pair[0].ours {
				interrupt(server)
				require.Zero(t, server.Wait())
				require.Empty(t, server.Stderr())
			}
		})
	}
}

// C's client cannot map an empty file, and sends nothing; our server goes on.
// C's server could not map one either, and then serves no client any more: ours
// does not ask it to.
func TestRcopyEmpty(t *testing.T) {
	d := needDevice(t)
	server := ourRcopy.start(t, "-b", d.IPv4.String(), "-p", "7428")
	listens(t, server)
	empty, _ := newFile(t, 0)
	copied := filepath.Join(t.TempDir(), "copy")
	require.NotZero(t, theirRcopy.run(t, empty, d.IPv4.String()+":"+copied, "-p", "7428").Wait())
	require.NoFileExists(t, copied)
	require.Zero(t, ourRcopy.run(t, "-p", "7428", empty, d.IPv4.String()+":"+copied).Wait())
	got, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Empty(t, got)
	interrupt(server)
	require.Zero(t, server.Wait())
}

// Without a destination, the copy has the original's path, in the server's
// folder. An IPv6 address before a destination is in brackets.
func TestRcopyPaths(t *testing.T) {
	d := needDevice(t)
	start := func(dir string, args ...string) *process.Process {
		cmd := process.Cmd(t, ourRcopy.command, args...)
		cmd.Dir = dir
		return process.Start(t, cmd)
	}
	there := t.TempDir()
	server := start(there, "-b", d.IPv6.String())
	listens(t, server)
	original, content := newFile(t, 100)
	for target, name := range map[string]string{d.IPv6.String(): "original", "[" + d.IPv6.String() + "]:other": "other"} {
		require.Zero(t, start(filepath.Dir(original), "original", target).Wait())
		got, err := os.ReadFile(filepath.Join(there, name))
		require.NoError(t, err)
		require.Equal(t, content, got)
	}
	server.Kill()
}

func TestRcopyFails(t *testing.T) {
	d := needDevice(t)
	original, _ := newFile(t, 1000)
	v4 := d.IPv4.String()
	for _, pair := range copyPairs {
		t.Run(fmt.Sprintf("%s server %s client", pair[0].name, pair[1].name), func(t *testing.T) {
			server := pair[0].start(t)
			listens(t, server)
			client := pair[1].run(t, original, v4+":"+filepath.Join(t.TempDir(), "no", "such", "folder"))
			require.NotZero(t, client.Wait())
			if pair[1].ours {
				require.Contains(t, client.Stderr(), "OPEN: the server says: no such file or directory\n")
			}
			client = pair[1].run(t, original, v4, "-p", "7429")
			require.NotZero(t, client.Wait())
			copied := filepath.Join(t.TempDir(), "copy")
			require.Zero(t, pair[1].run(t, original, v4+":"+copied).Wait(), "the server goes on")
			require.FileExists(t, copied)
			server.Kill()
		})
	}
}

// A client that dies in the middle costs its own file only, and our server says
// which.
func TestRcopyKilled(t *testing.T) {
	d := needDevice(t)
	server := ourRcopy.start(t)
	listens(t, server)
	sparse := filepath.Join(t.TempDir(), "sparse")
	require.NoError(t, os.WriteFile(sparse, nil, 0o600))
	require.NoError(t, os.Truncate(sparse, 1<<40))
	for i, p := range []program{theirRcopy, ourRcopy} {
		client := p.start(t, sparse, d.IPv4.String()+":/dev/null")
		client.Prints("transferring")
		client.Kill()
		server.Says(fmt.Sprintf("(?s)(rcopy: client .*/dev/null is incomplete.*){%d}", i+1))
	}
	original, content := newFile(t, 5000)
	copied := filepath.Join(t.TempDir(), "copy")
	require.Zero(t, theirRcopy.run(t, original, d.IPv4.String()+":"+copied).Wait())
	got, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Equal(t, content, got)
}
