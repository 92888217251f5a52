// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && amd64

package versions

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// TestStreams has rstream and rcopy, here, work together with C's, which have
// the libraries of each root.
func TestStreams(t *testing.T) {
	if os.Getenv("RDMA_VM") == "" {
		t.Skip("mounts and changes the root: runs only in tests/vm's guest")
	}
	d := testdevice.Require(t)
	for _, version := range []string{"44.0", "65.0"} {
		t.Run(version, func(t *testing.T) {
			dir := root(t, version)
			program, err := exec.LookPath("rstream")
			require.NoError(t, err)
			mount(t, dir, filepath.Dir(program))
			files, err := os.MkdirTemp(filepath.Join(dir, "tmp"), "") // which both sides see
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(files)) })
			// C's rcopy maps the copy. What it writes there would not be read
			// at once where the host has the file.
			require.NoError(t, syscall.Mount("tmpfs", files, "tmpfs", 0, ""))
			t.Cleanup(func() { require.NoError(t, syscall.Unmount(files, 0)) })
			within := filepath.Join("/tmp", filepath.Base(files))
			ours := func(name string, args ...string) *process.Process {
				return process.Start(t, process.Cmd(t, name, args...))
			}
			theirs := func(name string, args ...string) *process.Process {
				cmd := exec.Command(filepath.Join("/program", name), args...)
				cmd.Dir, cmd.Env = "/", append(os.Environ(), "PATH=")
				cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: dir}
				return process.Start(t, cmd)
			}
			for name, pair := range map[string]struct {
				server, client       func(name string, args ...string) *process.Process
				serverTmp, clientTmp string
			}{
				"C server": {theirs, ours, within, files},
				"C client": {ours, theirs, files, within},
			} {
				t.Run(name+"/rstream", func(t *testing.T) {
					for _, args := range []string{"-S 1 -C 1000 -T b", "-S 200000 -C 3 -I 2 -T a -T b"} {
						flags := append(strings.Fields(args), "-T", "v")
						server := pair.server("rstream", append(flags, "-b", d.IPv4.String())...)
						listens(t, server)
						client := pair.client("rstream", append(flags, "-s", d.IPv4.String())...)
						require.Zero(t, client.Wait())
						require.Zero(t, server.Wait())
						require.Contains(t, client.Stdout(), "\ncustom ")
					}
				})
				t.Run(name+"/rcopy", func(t *testing.T) {
					server := pair.server("rcopy")
					listens(t, server)
					content := make([]byte, 3<<20+1)
					_, err := rand.NewChaCha8([32]byte{}).Read(content)
					require.NoError(t, err)
					original, copied := filepath.Join(files, "original"), filepath.Join(files, "copy")
					require.NoError(t, os.WriteFile(original, content, 0o600))
					client := pair.client("rcopy", filepath.Join(pair.clientTmp, "original"), d.IPv4.String()+":"+filepath.Join(pair.serverTmp, "copy"))
					require.Zero(t, client.Wait())
					got, err := os.ReadFile(copied)
					require.NoError(t, err)
					require.Len(t, got, len(content))
					for i := range got {
						require.True(t, content[i] == got[i], "byte %d and %d after it: %x instead of %x", i, len(got)-i-1, got[i:min(i+32, len(got))], content[i:min(i+32, len(got))])
					}
					require.NoError(t, os.Remove(copied))
					server.Kill()
				})
			}
		})
	}
}

// listens waits until a process listens, the only one that does.
func listens(t *testing.T, p *process.Process) {
	t.Helper()
	p.Eventually("listens", func() bool {
		out, err := exec.Command("rdma", "resource", "show", "cm_id").Output()
		return err == nil && strings.Contains(string(out), "state LISTEN")
	})
	t.Cleanup(func() {
		p.Kill()
		require.Eventually(t, func() bool {
			out, err := exec.Command("rdma", "resource", "show", "cm_id").Output()
			return err == nil && !strings.Contains(string(out), "state LISTEN")
		}, time.Minute, 20*time.Millisecond)
	})
}
