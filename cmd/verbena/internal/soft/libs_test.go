// SPDX-License-Identifier: Apache-2.0

//go:build linux

package soft

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Programs that have opened a file of the device read its whole text while the
// files are written again.
func TestFilesAreReplaced(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, writeFiles(folder, usual))
	state := filepath.Join(folder, filesFolder, "sys/class/infiniband/soft0/ports/1/state")
	require.NoError(t, os.WriteFile(state, []byte("another version's\n"), 0o644))
	opened, err := os.Open(state)
	require.NoError(t, err)
	defer opened.Close()
	require.NoError(t, writeFiles(folder, usual))
	text, err := io.ReadAll(opened)
	require.NoError(t, err)
	require.Equal(t, "another version's\n", string(text))
	text, err = os.ReadFile(state)
	require.NoError(t, err)
	require.Equal(t, "4: ACTIVE\n", string(text))

	before, err := os.Stat(state)
	require.NoError(t, err)
	require.NoError(t, writeFiles(folder, usual))
	after, err := os.Stat(state)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, before.ModTime(), after.ModTime())
}

// Where the user's cache cannot be written, the files of devices are in the
// folder for temporary files, but not in a folder of another user.
func TestFilesWithoutCache(t *testing.T) {
	devices := []string{"a", "b"}
	for name, tt := range map[string]struct{ home, why string }{
		"none":         {"", "neither $XDG_CACHE_HOME nor $HOME are defined"},
		"not a folder": {os.DevNull, "mkdir " + os.DevNull + ": not a directory"},
		"occupied":     {occupied(t, devices), "not a directory"}, // a folder that can be written only in part
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", "")
			t.Setenv("HOME", tt.home)
			temporary := t.TempDir()
			t.Setenv("TMPDIR", temporary)
			for range 2 {
				folder, err := filesOf(devices)
				require.NoError(t, err)
				require.Contains(t, folder, temporary)
				text, err := os.ReadFile(filepath.Join(folder, "sys/class/infiniband_verbs/uverbs1/ibdev"))
				require.NoError(t, err)
				require.Equal(t, "b\n", string(text))
			}
			fails := func(why string) {
				t.Helper()
				_, err := filesOf(devices)
				require.ErrorContains(t, err, "no folder for the files of the devices: ")
				require.ErrorContains(t, err, tt.why)
				require.ErrorContains(t, err, "; and "+why)
			}
			own := filepath.Join(temporary, fmt.Sprintf("verbena-%d", os.Geteuid()))
			require.NoError(t, os.Chmod(own, 0o777))
			fails("others than this user can write " + own)
			require.NoError(t, os.Rename(own, own+" moved"))
			require.NoError(t, os.Chmod(own+" moved", 0o700))
			require.NoError(t, os.Symlink(own+" moved", own))
			fails("others than this user can write " + own)
			t.Setenv("TMPDIR", os.DevNull)
			fails("mkdir " + os.DevNull)
		})
	}
}

// occupied returns a home whose cache has a file in the place of the folder for
// these devices.
func occupied(t *testing.T, devices []string) string {
	home := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", "")
	t.Setenv("HOME", home)
	files, err := filesOf(devices)
	require.NoError(t, err)
	require.Contains(t, files, home)
	require.NoError(t, os.RemoveAll(filepath.Dir(files)))
	require.NoError(t, os.WriteFile(filepath.Dir(files), nil, 0o600))
	return home
}

// An error of the cache says how to do without one.
func TestBuildWithoutFolder(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", os.DevNull)
	t.Setenv("TMPDIR", os.DevNull)
	_, err := build(t.Context(), io.Discard)
	require.ErrorContains(t, err, "build the libraries: no folder to keep them in: mkdir "+os.DevNull)
	require.ErrorContains(t, err, "build them with verbena softroce libs FOLDER, and use them with verbena softroce run -l FOLDER")
}

// The libraries are built once, and again when something has changed.
func TestBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: builds the C libraries of the device in user space; CI runs it")
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	require.NoError(t, err)
	t.Setenv("GOCACHE", strings.TrimSpace(string(cache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var said bytes.Buffer
	folder, err := build(t.Context(), &said)
	require.NoError(t, err)
	require.Regexp(t, "^verbena softroce: building the libraries in "+regexp.QuoteMeta(folder)+", which takes a minute .*\n$", said.String())
	times := func() (all []int64) {
		for _, name := range names(folder) {
			info, err := os.Stat(name)
			require.NoError(t, err)
			all = append(all, info.ModTime().UnixNano())
		}
		return all[1:] // go build may touch its own
	}
	first := times()
	again, err := find(t.Context(), io.Discard)
	require.NoError(t, err)
	require.Equal(t, folder, again)
	require.Equal(t, first, times())
	require.NoError(t, os.Remove(filepath.Join(folder, "libefa.so.1")))
	_, err = build(t.Context(), io.Discard)
	require.NoError(t, err)
	require.NotEqual(t, first, times())

	to := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, install(folder, to))
	whole, err := whole(to)
	require.NoError(t, err)
	require.Equal(t, to, whole)

	var group sync.WaitGroup
	for range 8 { // at once, and over what is there
		group.Go(func() {
			if err := install(folder, to); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for i, name := range names(to) {
		want, err := os.ReadFile(names(folder)[i])
		require.NoError(t, err)
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got), name)
	}

	t.Setenv("CC", "/no/such/compiler")
	_, err = build(t.Context(), io.Discard)
	require.ErrorContains(t, err, "which needs Go and a C compiler: ")

	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("PATH", "")
	_, err = build(t.Context(), io.Discard)
	require.ErrorContains(t, err, `"go": executable file not found`)
}
