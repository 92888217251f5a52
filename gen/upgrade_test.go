// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestUpgrade goes from 44.0 to 65.0, deciding as it was decided, and ends with
// what is committed.
func TestUpgrade(t *testing.T) {
	headers, top := headertest.Dir(t, "65.0"), headertest.Top(t)
	r := newRepository(t)
	decided := read(t, filepath.Join(top, conventionsFile))

	// Everything that is missing is asked for at once.
	out := r.upgrade(t, false, "65.0", headers)
	var want, got []string
	has := map[string]bool{}
	for _, m := range convention.FindAllStringSubmatch(read(t, filepath.Join(r.top, conventionsFile)), -1) {
		has[m[1]] = true
	}
	for _, m := range convention.FindAllStringSubmatch(decided, -1) {
		if !has[m[1]] {
			want = append(want, m[1])
		}
	}
	for _, m := range convention.FindAllStringSubmatch(out, -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Len(t, want, 43)
	require.Equal(t, want, got)
	missing := len(release.FindAllString(read(t, filepath.Join(top, sinceFile)), -1)) -
		len(release.FindAllString(read(t, filepath.Join(r.top, sinceFile)), -1))
	require.Len(t, release.FindAllString(out, -1), missing)
	require.Contains(t, out, "\nRDMA_CM_EVENT_ADDRINFO_RESOLVED \"RDMA_CM_EVENT_ADDRINFO_RESOLVED\"\n")
	require.NotContains(t, out, "\nRDMA_CM_EVENT_USER ")
	require.Contains(t, out, "upgrade: stopped. Decide each of the lines above and add it.\n")
	require.NoFileExists(t, filepath.Join(r.top, "headers", "api", "65.0.json"))

	// The lines can be pasted as they are.
	paste := func(name string, pattern *regexp.Regexp) {
		lines := strings.Join(pattern.FindAllString(out, -1), "")
		r.edit(t, name, func(text string) string { return text + lines })
	}
	paste(conventionsFile, convention)
	paste(sinceFile, release)
	out = r.upgrade(t, false, "65.0", headers)
	require.NotContains(t, out, conventionsFile)
	require.NotContains(t, out, sinceFile)
	require.Contains(t, out, stringsFile)

	// Without the one C function that is needed, all the others are bound.
	r.restore(t, conventionsFile, sinceFile, stringsFile, manualFile)
	out = r.upgrade(t, false, "65.0", headers)
	require.Contains(t, out, "gen: infiniband/verbs.h: ibv_query_comp_cntr_caps is neither bound nor explained\n")
	require.Contains(t, out, "\n- own_ibv_query_comp_cntr_caps for int ibv_query_comp_cntr_caps(")
	require.Contains(t, out, "\n- struct verbs_context\n")

	r.restore(t, ownFile)
	out = r.upgrade(t, true, "65.0", headers)
	require.NotContains(t, out, "own_ibv_query_comp_cntr_caps")
	require.Equal(t, out, r.upgrade(t, true, "65.0", headers), "the same when run again")

	r.restore(t, "headers/api/56.1.json") // which was not on the way
	r.restoreParts(t)
	for _, dir := range []string{"generated", "headers", "tests/golden"} {
		sameFiles(t, filepath.Join(top, dir), filepath.Join(r.top, dir))
	}
	require.Equal(t, read(t, filepath.Join(top, "docs/proof/coverage.md")), read(t, filepath.Join(r.top, "docs/proof/coverage.md")))

	documented(t, filepath.Join(top, "docs", "proof", "header-upgrade.md"), r.output.String())
}

func refused(t *testing.T, r *repository) {
	t.Helper()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "usage: upgrade VERSION [FOLDER]"},
		{[]string{"67.0", "a", "b"}, "usage: upgrade VERSION [FOLDER]"},
		{[]string{"new"}, "'new' is not a version such as 65.0"},
		{[]string{"67.0", "none"}, "there is no folder none"},
		{[]string{"44.0", "."}, "headers/api has 66.0 already, which is newer; gen scan makes the snapshot of an old version"},
	} {
		out, err := r.run(append([]string{"scripts/upgrade"}, tt.args...)...)
		require.Error(t, err)
		require.Equal(t, "upgrade: "+tt.want+"\n", out)
	}
	out, err := r.run("make", "upgrade")
	require.Error(t, err)
	require.Contains(t, out, "VERSION is not given")
	out, err = r.run("scripts/upgrade", "67.0", t.TempDir())
	require.Error(t, err)
	require.Contains(t, out, "upgrade: stopped. The generator cannot represent these declarations")
}

func sameFiles(t *testing.T, want, got string) {
	t.Helper()
	paths := func(dir string) (out []string) {
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				out = append(out, strings.TrimPrefix(path, dir))
			}
			return err
		}))
		return out
	}
	require.Equal(t, paths(want), paths(got))
	for _, path := range paths(want) {
		require.True(t, read(t, want+path) == read(t, got+path), "%s differs", path)
	}
}

// documented looks for what a page shows as console output in the real one.
// Lines of dots stand for what the page leaves out.
func documented(t *testing.T, page, output string) {
	t.Helper()
	blocks := regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(read(t, page), -1)
	require.NotEmpty(t, blocks)
	for _, block := range blocks {
		for chunk := range strings.SplitSeq(block[1], "...\n") {
			require.True(t, strings.Contains(output, chunk), "not in the output:\n%s", chunk)
		}
	}
}
