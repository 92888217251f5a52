// SPDX-License-Identifier: Apache-2.0

package scan

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/conventions"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// versionOptions returns what to read for a version of the real headers, if
// they are there.
func versionOptions(t testing.TB, version string) Options {
	t.Helper()
	dir := headertest.Dir(t, version)
	facts := filepath.Join(headertest.Top(t), "headers")
	known, err := conventions.Load(filepath.Join(facts, "conventions.txt"))
	require.NoError(t, err)
	return Options{
		Headers: dir, Shim: filepath.Join(facts, "shim"), Source: filepath.Join(facts, "umbrella.h"),
		Version: version, Known: known,
	}
}

// scanned has what scanVersion has scanned, which no test changes.
var scanned = map[string]*api.API{}

// scanVersion scans real headers, if they are there, once.
func scanVersion(t testing.TB, version string) *api.API {
	t.Helper()
	opts := versionOptions(t, version)
	if scanned[version] == nil {
		a, err := Scan(opts)
		require.NoError(t, err)
		scanned[version] = a
	}
	return scanned[version]
}

// counts of a header, or of several.
type counts struct {
	exported, inline, enums, enumerators, structs, macros, aliases int
}

func countOf(a *api.API) map[string]counts {
	all := map[string]counts{}
	add := func(header string, change func(*counts)) {
		c := all[header]
		change(&c)
		all[header] = c
	}
	for _, f := range a.Functions {
		add(f.Header, func(c *counts) {
			if f.Inline == nil {
				c.exported++
			} else {
				c.inline++
			}
		})
	}
	for _, e := range a.Enums {
		add(e.Header, func(c *counts) { c.enums++; c.enumerators += len(e.Values) })
	}
	for _, s := range a.Structs {
		add(s.Header, func(c *counts) { c.structs++ })
	}
	for _, m := range a.Macros {
		add(m.Header, func(c *counts) { c.macros++ })
	}
	for _, m := range a.Aliases {
		add(m.Header, func(c *counts) { c.aliases++ })
	}
	return all
}

// TestCounts has the numbers of an inventory that was made by other means.
func TestCounts(t *testing.T) {
	tests := []struct {
		version string
		want    map[string]counts
	}{
		{"44.0", map[string]counts{
			"rdma/rdma_cma.h":    {exported: 38, inline: 2, enums: 8, enumerators: 35, structs: 10, macros: 10},
			"rdma/rdma_verbs.h":  {exported: 3, inline: 16},
			"rdma/rsocket.h":     {exported: 27, enums: 1, enumerators: 5, macros: 1},
			"infiniband/verbs.h": {exported: 67, inline: 95, enums: 66, enumerators: 409, structs: 100, macros: 8},
		}},
		{"65.0", map[string]counts{
			"rdma/rdma_cma.h":                  {exported: 41, inline: 2, enums: 8, enumerators: 39, structs: 10, macros: 12},
			"rdma/rdma_verbs.h":                {exported: 3, inline: 16},
			"rdma/rsocket.h":                   {exported: 30, enums: 1, enumerators: 5, macros: 1},
			"infiniband/verbs.h":               {exported: 87, inline: 97, enums: 75, enumerators: 446, structs: 108, macros: 9},
			"infiniband/verbs_api.h":           {macros: 18, aliases: 9},
			"infiniband/sa.h":                  {structs: 5, macros: 8},
			"infiniband/tm_types.h":            {enums: 1, enumerators: 4, structs: 2},
			"infiniband/ib.h":                  {inline: 4, structs: 2, macros: 2}, // AF_IB and PF_IB: our libc lacks them
			"infiniband/ib_user_ioctl_verbs.h": {enums: 22, enumerators: 118, structs: 8, macros: 2},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.version, func(t *testing.T) {
			got := countOf(scanVersion(t, tt.version))
			for header, want := range tt.want {
				require.Equal(t, want, got[header], header)
			}
		})
	}
}

// TestTotals has the sums for the four headers that programs include.
func TestTotals(t *testing.T) {
	var sum counts
	all := countOf(scanVersion(t, "65.0"))
	for _, header := range []string{"rdma/rdma_cma.h", "rdma/rdma_verbs.h", "rdma/rsocket.h", "infiniband/verbs.h"} {
		c := all[header]
		sum.exported += c.exported
		sum.inline += c.inline
		sum.enums += c.enums
		sum.enumerators += c.enumerators
		sum.structs += c.structs
		sum.macros += c.macros
	}
	require.Equal(t, counts{exported: 161, inline: 115, enums: 84, enumerators: 490, structs: 118, macros: 22}, sum)
}

// TestVersions scans every version that the bindings know.
func TestVersions(t *testing.T) {
	for _, version := range headertest.Versions(t) {
		t.Run(version, func(t *testing.T) {
			a := scanVersion(t, version)
			require.Equal(t, version, a.Version)
			require.Greater(t, len(a.Functions), 230)
			for _, f := range a.Functions {
				require.Equal(t, len(f.Params), len(f.Type.Params), f.Name)
			}
		})
	}
}

func BenchmarkScan(b *testing.B) {
	opts := versionOptions(b, headertest.Newest(b))
	for b.Loop() {
		_, err := Scan(opts)
		require.NoError(b, err)
	}
}
