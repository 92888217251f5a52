// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// softroce returns verbena softroce run with a program.
func softroce(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	return process.Cmd(t, "verbena", append([]string{"softroce", "run", "-l", folder}, args...)...)
}

// Programs see the device's files in each way that libc has.
func TestFiles(t *testing.T) {
	t.Setenv("ASAN_OPTIONS", "detect_leaks=0") // the program frees nothing
	for name, args := range map[string][]string{
		"plain":             nil,
		"large files":       {"-D_FILE_OFFSET_BITS=64"},
		"fortified":         {"-D_FORTIFY_SOURCE=2"},
		"not optimized":     {"-O0"},
		"address sanitizer": {"-fsanitize=address"},
		"thread sanitizer":  {"-fsanitize=thread"},
	} {
		t.Run(name, func(t *testing.T) {
			runFiles(t, args...)
		})
	}
}

// runFiles compiles the program, with arguments for the compiler, and runs it.
func runFiles(t *testing.T, args ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "files")
	args = append([]string{"-Wall", "-Werror", "-O2", "-o", path, filepath.Join("testdata", "files.c")}, args...)
	output, err := exec.Command("cc", args...).CombinedOutput()
	require.NoError(t, err, "%s", output)
	p := process.Run(t, softroce(t, path, t.TempDir()))
	require.Zero(t, p.Wait(), "%s", p.Output())
}

// Signal handlers may have little stack.
func TestFilesInSignalHandler(t *testing.T) {
	p := process.Run(t, softroce(t, compile(t, "handler", "-Wl,-z,now")))
	require.Zero(t, p.Wait(), "%s", p.Output())
}

// Constructors of libraries see the files, too.
func TestFilesInConstructor(t *testing.T) {
	t.Setenv("LD_PRELOAD", compile(t, "early", "-shared", "-fPIC"))
	p := process.Run(t, softroce(t, "true"))
	require.Zero(t, p.Wait(), "%s", p.Output())
	require.Equal(t, "the file is there\n", p.Stdout())
}

// What the files say is what libibverbs says.
func TestFilesAreTheDevices(t *testing.T) {
	if _, err := exec.LookPath("ibv_devinfo"); err != nil {
		t.Skip("needs rdma-core's programs, which make setup installs")
	}
	p := process.Run(t, softroce(t, "ibv_devinfo", "-v"))
	require.Zero(t, p.Wait(), "%s", p.Output())
	info := map[string]string{}
	for line := range strings.Lines(p.Stdout()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		info[name] = strings.TrimSpace(value)
	}
	device := "/sys/class/infiniband/" + info["hca_id"]
	read := func(path string) string {
		p := process.Run(t, softroce(t, "cat", path))
		require.Zero(t, p.Wait(), "%s", p.Output())
		return strings.TrimSpace(p.Stdout())
	}
	require.Equal(t, info["link_layer"], read(device+"/ports/1/link_layer"))
	require.Equal(t, "PORT_ACTIVE (4)", info["state"])
	require.Equal(t, "4: ACTIVE", read(device+"/ports/1/state"))
	require.Equal(t, "LINK_UP (5)", info["phys_state"])
	require.Equal(t, "5: LinkUp", read(device+"/ports/1/phys_state"))
	require.Contains(t, info["GID[  0]"], "RoCE v2")
	require.Equal(t, "RoCE v2", read(device+"/ports/1/gid_attrs/types/0"))
	require.Equal(t, info["hca_id"], read("/sys/class/infiniband_verbs/uverbs0/ibdev"))
}

// UCX sends and receives over connections and over datagrams.
func TestUCX(t *testing.T) {
	if _, err := exec.LookPath("ucx_perftest"); err != nil {
		t.Skip("needs UCX's programs, which make setup installs")
	}
	for i, transport := range []string{"rc_v", "ud_v"} {
		t.Run(transport, func(t *testing.T) {
			t.Setenv("UCX_TLS", transport)
			t.Setenv("UCX_NET_DEVICES", "soft0:1")
			port := fmt.Sprint(20000 + (os.Getpid()*2+i)%10000) // of TCP, over which the programs find each other
			server := process.Start(t, softroce(t, "ucx_perftest", "-p", port))
			var client *process.Process
			for { // until the server listens
				client = process.Run(t, softroce(t, "ucx_perftest", "-p", port, "127.0.0.1", "-t", "tag_lat", "-s", "5000", "-n", "500", "-w", "10"))
				if client.Wait() == 0 {
					break
				}
				require.Contains(t, client.Output(), "Connection refused")
				require.False(t, server.Ended(), "%s", server.Output())
			}
			require.Regexp(t, `Final: +500 `, client.Stdout())
			require.Zero(t, server.Wait(), "%s", server.Output())
		})
	}
}
