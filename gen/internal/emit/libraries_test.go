// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestLibrariesUnchanged proves that the libraries are what the snapshots give.
func TestLibrariesUnchanged(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, Libraries(load(t), dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 8)
	committed := filepath.Join(headertest.Top(t), "softroce", "internal", "clib", "c")
	for _, e := range entries {
		written, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join(committed, e.Name()))
		require.NoError(t, err)
		require.True(t, string(written) == string(have), "%s is not what gen makes; go run ./gen emit rewrites it", e.Name())
	}
	have, err := filepath.Glob(filepath.Join(committed, "lib*"))
	require.NoError(t, err)
	require.Len(t, have, len(entries), "there are files that gen does not make")
}

// Each function has the node under which programs look for it, in a chain from
// the oldest to the newest.
func TestNodes(t *testing.T) {
	all, err := packages(load(t))
	require.NoError(t, err)
	for _, s := range skeletons(all) {
		require.Len(t, s.Versioned(), len(s.Exported()))
		nodes, before := s.nodes(), ""
		seen := map[string]bool{}
		for _, n := range nodes {
			require.Equal(t, before, n.Before)
			require.NotEmpty(t, n.Symbols)
			before = n.Name
			for _, symbol := range n.Symbols {
				require.False(t, seen[symbol], symbol)
				seen[symbol] = true
			}
		}
		require.Len(t, seen, len(s.Exported())+len(s.Undeclared()))
	}
	require.Equal(t, []node{
		{Name: "A_1.2", Symbols: []string{"b"}, number: []int{1, 2}},
		{Name: "A_1.10", Before: "A_1.2", Symbols: []string{"a", "c"}, number: []int{1, 10}},
		{Name: "A_1.10.1", Before: "A_1.10", Symbols: []string{"d"}, number: []int{1, 10, 1}},
	}, chain(map[string][]string{"A_1.10": {"c", "a"}, "A_1.2": {"b"}, "A_1.10.1": {"d"}}))
	require.Empty(t, chain(nil))
}

// A snapshot that was made without the libraries takes the nodes of those
// before it; a function that none of them has is not there.
func TestLibrariesWithoutNodes(t *testing.T) {
	dir := t.TempDir()
	without := func(a *api.API) *api.API {
		bare := *a
		bare.Functions, bare.Undeclared = nil, nil
		for _, f := range a.Functions {
			function := *f
			function.Node = ""
			bare.Functions = append(bare.Functions, &function)
		}
		return &bare
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}
	in := load(t)
	last := len(in.Snapshots) - 1
	in.API = without(in.API)
	in.Snapshots[last] = in.API
	require.NoError(t, Libraries(in, dir))
	require.Contains(t, read("librdmacm.c"), "int rdma_create_id(")
	require.Contains(t, read("librdmacm.map"), "rdma_create_id;")
	require.Contains(t, read("libibverbs.c"), "int ibv_read_sysfs_file(")
	require.NotContains(t, read("librdmacm.c"), "rdma_resolve_addrinfo") // of after the last one with nodes

	for i, snapshot := range in.Snapshots {
		in.Snapshots[i] = without(snapshot)
	}
	require.NoError(t, Libraries(in, dir))
	require.NotContains(t, read("librdmacm.c"), "rdma_create_id")
	require.NotContains(t, read("librdmacm.map"), "RDMACM")
	require.True(t, strings.HasPrefix(read("librdmacm.c"), "// "+marker))
}
