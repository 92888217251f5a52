// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clib

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
)

// Programs see several devices, in libibverbs and in files.
func TestSeveralDevices(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("VERBENA_DEVICES", "soft0=127.0.0.1;other=127.0.0.2")
	run := func(args ...string) string {
		p := process.Run(t, softroce(t, args...))
		require.Zero(t, p.Wait(), "%s", p.Output())
		return strings.TrimSpace(p.Stdout())
	}
	require.Equal(t, "other\nsoft0", run("ls", "/sys/class/infiniband"))
	require.Equal(t, "rdma_cm\nuverbs0\nuverbs1", run("ls", "/dev/infiniband"))
	require.Equal(t, "other", run("cat", "/sys/class/infiniband_verbs/uverbs1/ibdev"))
	require.Equal(t, "4: ACTIVE", run("cat", "/sys/class/infiniband/other/ports/1/state"))
	if _, err := exec.LookPath("ibv_devinfo"); err != nil {
		t.Skip("needs rdma-core's programs, which make setup installs")
	}
	info := run("ibv_devinfo", "-v")
	var names, gids []string
	for _, m := range regexp.MustCompile(`hca_id:\s*(\S+)`).FindAllStringSubmatch(info, -1) {
		names = append(names, m[1])
	}
	for _, m := range regexp.MustCompile(`GID\[ *\d+\]:\s*([^,\s]+)`).FindAllStringSubmatch(info, -1) {
		gids = append(gids, m[1])
	}
	require.Equal(t, []string{"soft0", "other"}, names)
	require.Equal(t, []string{"::ffff:127.0.0.1", "::ffff:127.0.0.2"}, gids)
}

// Programs do not see that the cache lies below a symbolic link.
func TestCacheBelowLink(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), cache))
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("VERBENA_DEVICES", "soft0=127.0.0.1")
	runFiles(t)
}

// A user without a home may have several devices.
func TestSeveralDevicesWithoutHome(t *testing.T) {
	t.Setenv("VERBENA_DEVICES", "soft0=127.0.0.1;other=127.0.0.2")
	t.Setenv("TMPDIR", t.TempDir())
	cmd := softroce(t, "ls", "/dev/infiniband")
	cmd.Env = append(os.Environ(), "HOME=", "XDG_CACHE_HOME=")
	p := process.Run(t, cmd)
	require.Zero(t, p.Wait(), "%s", p.Output())
	require.Equal(t, "rdma_cm\nuverbs0\nuverbs1\n", p.Stdout())
}

// A wrong name changes no files, and the device says what is wrong.
func TestWrongDevices(t *testing.T) {
	if _, err := exec.LookPath("ibv_devices"); err != nil {
		t.Skip("needs rdma-core's programs, which make setup installs")
	}
	t.Setenv("VERBENA_DEVICES", "../soft0=127.0.0.1")
	p := process.Run(t, softroce(t, "ibv_devices"))
	p.Wait()
	require.Contains(t, p.Stderr(), `VERBENA_DEVICES=../soft0=127.0.0.1: device name "../soft0": want `)
}
