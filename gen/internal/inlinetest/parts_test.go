// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/included"
)

// TestPart compares the functions of our own for mlx5dv.h with the header's,
// over the same fakes in place of the library.
func TestPart(t *testing.T) {
	headers, compiler, top := headertest.Dir(t, headertest.Newest(t)), cc(t), headertest.Top(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	for _, folder := range []string{filepath.Join("testdata", "parts"), filepath.Join(top, "gen", "internal", "emit", "c")} {
		require.NoError(t, os.CopyFS(dir, os.DirFS(folder)))
	}
	roots, err := included.RootsOf(compiler)
	require.NoError(t, err)
	include := filepath.Join(headers, "usr", "include")
	messages, err := roots.Run(exec.Command(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-address", "-isystem", include,
		"-o", program, filepath.Join(dir, "mlx5.c")), include)
	require.NoError(t, err, messages)
	out, err := exec.Command(program).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "4 functions agree\n", string(out))
}
