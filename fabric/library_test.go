// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fabric_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/fabric"
)

// A program starts where the library is missing, and the error names it. The
// test runs itself where the loader finds an empty file in the library's place.
func TestWithoutLibrary(t *testing.T) {
	const inChild = "VERBENA_TEST_WITHOUT_LIBRARY"
	if os.Getenv(inChild) != "" {
		_, err := fabric.Open(fabric.Config{})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "cannot load libibumad.so.3 (on Debian and Ubuntu install libibumad3, on Fedora libibumad): ")
		return
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libibumad.so.3"), nil, 0o600))
	cmd := exec.Command(os.Args[0], "-test.run=^TestWithoutLibrary$")
	cmd.Env = append(os.Environ(), inChild+"=1", "LD_LIBRARY_PATH="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
