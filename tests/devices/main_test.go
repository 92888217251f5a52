// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The report of verbena selftest's tests gets a row, and the page keeps what is
// around its table.
func TestRun(t *testing.T) {
	const golden = "../../cmd/verbena/internal/selftest/testdata/report.json"
	soft := filepath.Join(t.TempDir(), "soft.json")
	require.NoError(t, os.WriteFile(soft, []byte(`{"system":{"kernel":"6.12.1"},"device":{"driver":"softroce","limits":"siw"},"two_hosts":true,`+
		`"results":[{"check":"x","outcome":"ok"}]}`), 0o600))
	page := filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, os.WriteFile(page, []byte("# Before\n\n"+head+"| old |\n\nBehind\n"), 0o600))
	for range 2 {
		require.NoError(t, run(page, []string{golden, soft}))
		got, err := os.ReadFile(page)
		require.NoError(t, err)
		require.Equal(t, "# Before\n\n"+head+"| mlx5_core 22.41.1000 | 6.12.48 | 1 | 1 | 1 | 1 | 0 | a.other, **b.wrong** |\n"+
			"| in user space, limits `siw`, two hosts |  | 1 | 0 | 0 | 0 | 0 |  |\n\nBehind\n", string(got))
	}
	require.ErrorContains(t, run("main.go", nil), "no table that begins with")
	require.ErrorIs(t, run(page, []string{"none"}), os.ErrNotExist)
	require.ErrorContains(t, run(page, []string{page}), "page.md: ")
}
