// SPDX-License-Identifier: Apache-2.0

package check

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestSnapshot proves with every compiler that is installed that each fact of
// the snapshot is right: in the real headers, and in the C declarations that
// the bindings are compiled with.
func TestSnapshot(t *testing.T) {
	top := headertest.Top(t)
	in, err := emit.Load(filepath.Join(top, "headers"))
	require.NoError(t, err)
	a := in.API
	abi := func(name string) string { return filepath.Join(top, "generated", name, "abi.h") }
	for _, tt := range compilers(t) {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.find(t)
			require.Equal(t, tt.arch, c.Arch.Name)
			facts, err := Facts(a, c.Arch)
			require.NoError(t, err)
			t.Run("headers", func(t *testing.T) {
				dir := headertest.Dir(t, a.Version)
				agrees(t, c, facts, 5000, Declarations{
					Source: filepath.Join(top, "headers", "umbrella.h"), Include: filepath.Join(dir, "usr", "include"), Macros: true,
				})
			})
			t.Run("librdmacm", func(t *testing.T) {
				agrees(t, c, facts, 5000, Declarations{Source: abi("librdmacm")})
			})
			t.Run("libibverbs", func(t *testing.T) {
				agrees(t, c, facts, 4500, Declarations{
					Source: abi("libibverbs"),
					Has:    func(header string) bool { return in.Home(header) == "libibverbs" },
				})
			})
		})
	}
}

func agrees(t *testing.T, c *Compiler, facts []Fact, least int, d Declarations) {
	t.Helper()
	r, err := Compare(c, facts, d)
	require.NoError(t, err)
	require.Empty(t, r.Different)
	require.GreaterOrEqual(t, r.Total(), least)
}

// TestFactsAreDistinct shows that nothing is counted twice.
func TestFactsAreDistinct(t *testing.T) {
	a, err := api.Load(filepath.Join(headertest.Top(t), "headers", "api", headertest.Newest(t)+".json"))
	require.NoError(t, err)
	for _, arch := range []string{"amd64", "arm64"} {
		facts, err := Facts(a, archOf(t, arch))
		require.NoError(t, err)
		names := map[string]bool{}
		for _, f := range facts {
			require.False(t, names[f.Name], f.Name)
			names[f.Name] = true
		}
	}
}

func TestCounts(t *testing.T) {
	c := native(t)
	facts, err := Facts(small(t), c.Arch)
	require.NoError(t, err)
	d := smallDeclarations()
	r, err := Compare(c, facts, d)
	require.NoError(t, err)
	require.Empty(t, r.Different)
	require.Equal(t, "    8 layouts    47 members    11 values     4 prototypes     0 differ", r.String())
	require.Equal(t, 70, r.Total())

	d.Macros = false
	d.Has = func(header string) bool { return header == "b.h" }
	r, err = Compare(c, facts, d)
	require.NoError(t, err)
	require.Equal(t, [kinds]int{0, 0, 1, 1}, r.Compared)
}

func small(t *testing.T) *api.API {
	t.Helper()
	a, err := api.Load(filepath.Join("testdata", "snapshot.json"))
	require.NoError(t, err)
	return a
}

func smallDeclarations() Declarations {
	return Declarations{Name: "testdata", Source: filepath.Join("testdata", "declarations.h"), Macros: true}
}
