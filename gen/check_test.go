// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

const disagree = "the snapshot contradicts the compilers or the golden layouts"

// checkArgs returns the arguments for the repository's own files.
func checkArgs(t *testing.T, more ...string) []string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	top := headertest.Top(t)
	return append([]string{
		"check", "-headers", headertest.Dir(t, headertest.Newest(t)), "-facts", filepath.Join(top, "headers"),
		"-generated", filepath.Join(top, "generated"),
	}, more...)
}

func TestCheck(t *testing.T) {
	golden := filepath.Join(headertest.Top(t), "tests", "golden")
	require.NoError(t, run(checkArgs(t, "-golden", golden, "-cc", "cc,cc -std=gnu11")))
}

func TestCheckUpdate(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("cc must be a compiler for amd64, which the files are for first")
	}
	golden, mine := filepath.Join(headertest.Top(t), "tests", "golden"), t.TempDir()
	require.EqualError(t, run(checkArgs(t, "-golden", mine)), disagree)
	require.NoError(t, run(checkArgs(t, "-golden", mine, "-update")))
	for _, name := range []string{"libibverbs.layout", "librdmacm.layout"} {
		require.Equal(t, read(t, filepath.Join(golden, name)), read(t, filepath.Join(mine, name)))
	}
}

// TestCheckDifferent shows that golden files are not written when a compiler
// does not agree.
func TestCheckDifferent(t *testing.T) {
	generated, golden := t.TempDir(), t.TempDir()
	require.NoError(t, os.CopyFS(generated, os.DirFS(filepath.Join(headertest.Top(t), "generated"))))
	abi := filepath.Join(generated, "libibverbs", "abi.h")
	text := read(t, abi)
	require.NoError(t, os.WriteFile(abi, []byte(strings.Replace(text, "IBV_MTU_256 = 1,", "IBV_MTU_256 = 2,", 1)), 0o600))
	err := run(checkArgs(t, "-generated", generated, "-golden", golden, "-update"))
	require.EqualError(t, err, disagree)
	files, err := os.ReadDir(golden)
	require.NoError(t, err)
	require.Empty(t, files)
}

func TestCheckErrors(t *testing.T) {
	require.ErrorIs(t, run(checkArgs(t, "-cc", "verbena-has-no-such-compiler")), exec.ErrNotFound)
	require.EqualError(t, run(checkArgs(t, "-cc", "cc,")), "no C compiler is named")
	require.ErrorContains(t, run(checkArgs(t, "-headers", t.TempDir())), "cannot compile headers of "+headertest.Newest(t)+": ")
}

// TestCheckSystem has compilers that find another version's headers by
// themselves, as with Debian's packages libibverbs-dev and librdmacm-dev: what
// the folder lacks is not taken from there.
func TestCheckSystem(t *testing.T) {
	system := filepath.Join(headertest.Dir(t, "44.0"), "usr", "include")
	lacking := t.TempDir()
	require.NoError(t, os.CopyFS(lacking, os.DirFS(headertest.Dir(t, headertest.Newest(t)))))
	require.NoError(t, os.Remove(filepath.Join(lacking, "usr", "include", "infiniband", "sa.h")))
	t.Setenv("C_INCLUDE_PATH", system)
	for name, headers := range map[string]string{"verbs.h": t.TempDir(), "sa.h": lacking} {
		for _, compiler := range []string{"cc", "clang"} {
			if _, err := exec.LookPath(compiler); err != nil {
				continue
			}
			err := run(checkArgs(t, "-cc", compiler, "-headers", headers))
			require.ErrorContains(t, err, compiler+" cannot compile headers of "+headertest.Newest(t)+": ")
			require.ErrorContains(t, err, "the compiler has taken infiniband/"+name+" from ")
		}
	}
	require.NoError(t, run(checkArgs(t, "-golden", filepath.Join(headertest.Top(t), "tests", "golden"))))
}
