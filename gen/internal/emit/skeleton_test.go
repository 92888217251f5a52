// SPDX-License-Identifier: Apache-2.0

package emit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestSkeletonUnchanged proves that the skeleton is what the snapshot and the
// conventions give, and that the same input gives the same bytes.
func TestSkeletonUnchanged(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	require.NoError(t, Skeleton(load(t), first))
	require.NoError(t, Skeleton(load(t), second))
	capi := filepath.Join(headertest.Top(t), "softroce", "internal", "capi")
	entries, err := os.ReadDir(first)
	require.NoError(t, err)
	require.Len(t, entries, 8)
	for _, e := range entries {
		read := func(dir string) string {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			return string(text)
		}
		require.True(t, read(first) == read(second), "%s differs from run to run", e.Name())
		require.True(t, read(first) == read(capi), "%s is not what gen makes; go run ./gen emit rewrites it", e.Name())
	}
	skeletons, err := filepath.Glob(filepath.Join(capi, "*_skeleton*"))
	require.NoError(t, err)
	require.Len(t, skeletons, len(entries), "there are files that gen does not make")
}

// TestSkeletonIsWhole looks for everything that the stubs look up, and for
// every operation that they call.
func TestSkeletonIsWhole(t *testing.T) {
	in := load(t)
	all, err := packages(in)
	require.NoError(t, err)
	libraries := skeletons(all)
	provides, calls := map[string]bool{}, map[string]bool{}
	for _, s := range libraries {
		for _, f := range s.Exported() {
			provides[f.Name()] = true
		}
		for _, table := range s.tables {
			for _, e := range append(table.Members, table.Ops...) {
				calls[e.Member] = true
			}
		}
	}
	symbols, err := Symbols(in)
	require.NoError(t, err)
	for _, name := range append(symbols["libibverbs"], symbols["librdmacm"]...) {
		require.True(t, provides[name], name)
	}
	operations := 0
	for _, p := range all {
		for _, f := range p.bound() {
			if f.call() != dispatch && f.call() != guarded || f.Type.Params[0].Elem.Name == "struct ibv_wq" && f.call() == dispatch {
				continue
			}
			op := f.Inline.Call[strings.LastIndexAny(f.Inline.Call, ".>")+1:]
			if op != "memcpy_to_dm" && op != "memcpy_from_dm" { // the device sets them by hand
				require.True(t, calls[op], op)
				operations++
			}
		}
	}
	require.Greater(t, operations, 70)
}

// TestDataPathStaysInC proves that no function that the stubs call without
// being ready for it calls Go: that would end the program.
func TestDataPathStaysInC(t *testing.T) {
	all, err := packages(load(t))
	require.NoError(t, err)
	verbs := skeletons(all)[0]
	toGo := map[string]bool{}
	for _, f := range verbs.ToGo() {
		toGo[f.C] = true
	}
	stubs, err := verbs.pkg.render()
	require.NoError(t, err)
	called := 0
	for _, f := range verbs.bound() {
		if !strings.Contains(string(stubs["stubs_path.go"]), "#cgo nocallback "+verbs.kind(f).Name()+"\n") {
			continue
		}
		called++
		for _, table := range verbs.tables {
			for _, e := range append(table.Members, table.Ops...) {
				if strings.HasSuffix(f.Inline.Call, "->"+e.Member) || strings.HasSuffix(f.Inline.Call, "."+e.Member) {
					require.False(t, toGo[e.Function], "%s calls %s", f.Name(), e.Function)
				}
			}
		}
	}
	require.Greater(t, called, 45)
	for _, name := range []string{"soft_ibv_get_cq_event", "soft_ibv_ack_cq_events"} {
		require.False(t, toGo[name], name)
	}
}

func TestSkeletonRefused(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Input)
		want   string
	}{
		{"stale function", func(in *Input) {
			in.Known.Funcs["ibv_gone"] = &conventions.Func{Name: "ibv_gone", Class: conventions.Code}
		}, "conventions: a line for the function ibv_gone"},
		{"function without a convention", func(in *Input) {
			delete(in.Known.Funcs, "ibv_alloc_pd")
		}, "skeleton of libibverbs: infiniband/verbs.h: func ibv_alloc_pd: no line in the conventions"},
		{"operation that nothing calls", func(in *Input) {
			for _, s := range in.API.Structs {
				if s.Name == "struct verbs_context" {
					for _, m := range s.Members {
						if m.Name == "alloc_td" {
							m.Name = "make_td"
						}
					}
				}
			}
			in.Since = parseSince(t, readFacts(t, "since.txt")+"65 member verbs_context.make_td\n")
		}, "skeleton of libibverbs: infiniband/verbs.h: member verbs_context.make_td: no function of the headers calls the operation"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := load(t)
			tt.change(&in)
			dir := filepath.Join(t.TempDir(), "capi")
			require.ErrorContains(t, Skeleton(in, dir), tt.want)
			require.NoDirExists(t, dir)
		})
	}
}
