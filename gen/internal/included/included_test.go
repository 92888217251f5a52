// SPDX-License-Identifier: Apache-2.0

package included

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// TestList has the messages of both compilers.
func TestList(t *testing.T) {
	tests := map[string]struct {
		messages, rest string
		files          []string
	}{
		"none":  {"", "", nil},
		"gcc":   {". /a/b.h\n.. /a/c.h\na.c:1:5: error: bad\n    1 | x\nMultiple include guards may be useful for:\n/a/b.h\n/a/c.h\n", "a.c:1:5: error: bad\n    1 | x\n", []string{"/a/b.h", "/a/c.h"}},
		"clang": {". a/b.h\na/b.h:1:2: error: bad\n  . x\n.. a/c.h\n1 error generated.\n", "a/b.h:1:2: error: bad\n  . x\n1 error generated.\n", []string{"a/b.h", "a/c.h"}},
		"gcc, with a message at the end": {
			". /a/b.h\nMultiple include guards may be useful for:\n/a/b.h\na.c:1:5: warning: late\n", "a.c:1:5: warning: late\n", []string{"/a/b.h"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			files, rest := List(tt.messages)
			require.Equal(t, tt.files, files)
			require.Equal(t, tt.rest, rest)
		})
	}
}

func TestParseRoots(t *testing.T) {
	roots, err := parseRoots("ignoring\n#include \"...\" search starts here:\n#include <...> search starts here:\n /usr/lib/x/../include\n rel dir\nEnd of search list.\n # 1\n")
	require.NoError(t, err)
	require.Equal(t, Roots{"/usr/lib/include", "rel dir"}, roots)
	_, err = parseRoots("tcc version 0.9\n")
	require.EqualError(t, err, "the C compiler does not say where it looks for headers")
}

func TestCheck(t *testing.T) {
	work, err := os.Getwd()
	require.NoError(t, err)
	roots := Roots{"/usr/include", "/usr/include/x86", "/sys"}
	tests := map[string]struct {
		dir, file, want string
	}{
		"of the folder":            {"/new", "/new/infiniband/verbs.h", ""},
		"of the folder, in a root": {"/usr/include/new", "/usr/include/new/rdma/x.h", ""},
		"of a relative folder":     {"new", filepath.Join(work, "new/infiniband/verbs.h"), ""},
		"of libc":                  {"/new", "/usr/include/stdio.h", ""},
		"of a name that is alike":  {"/new", "/usr/include/rdma.h", ""},
		"of a checkout in rdma":    {"/new", "/home/rdma/verbena/headers/umbrella.h", ""},
		"of the system":            {"/new", "/usr/include/rdma/x.h", `the compiler has taken rdma/x.h from /usr/include/rdma/x.h, not from the folder "/new"`},
		"of the system, by detour": {"/new", "/usr/lib/../include/infiniband/a/x.h", `the compiler has taken infiniband/a/x.h from /usr/include/infiniband/a/x.h, not from the folder "/new"`},
		"of an inner root":         {"/new", "/usr/include/x86/rdma/x.h", `the compiler has taken rdma/x.h from /usr/include/x86/rdma/x.h, not from the folder "/new"`},
		"of a folder alike":        {"/usr/include/rd", "/usr/include/rdma/x.h", `the compiler has taken rdma/x.h from /usr/include/rdma/x.h, not from the folder "/usr/include/rd"`},
		"where none is wanted":     {"", "/sys/rdma/x.h", `the compiler has taken rdma/x.h from /sys/rdma/x.h, not from the folder ""`},
		"where the folder is it":   {"/usr/include", "/usr/include/rdma/x.h", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := roots.Check(tt.dir, []string{tt.file})
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, tt.want)
		})
	}
}

// TestRun has compilers that find a header by themselves, before or after the
// folder, and one that reports an error.
func TestRun(t *testing.T) {
	for _, compiler := range []string{"gcc", "clang"} {
		t.Run(compiler, func(t *testing.T) {
			if _, err := exec.LookPath(compiler); err != nil {
				t.Skipf("no %s: %v", compiler, err)
			}
			run := func(t *testing.T, ours, text string) (string, error) {
				t.Helper()
				roots, err := RootsOf(compiler)
				require.NoError(t, err)
				cmd := exec.Command(compiler, "-fsyntax-only", "-isystem", ours, "-x", "c", "-")
				cmd.Stdin = strings.NewReader(text)
				return roots.Run(cmd, ours)
			}
			ours, system := t.TempDir(), t.TempDir()
			for _, path := range []string{filepath.Join(ours, "infiniband", "both.h"), filepath.Join(system, "infiniband", "both.h"), filepath.Join(system, "infiniband", "only.h")} {
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				require.NoError(t, os.WriteFile(path, []byte("#include <stddef.h>\n"), 0o600))
			}
			const both, only = "#include <infiniband/both.h>\n", "#include <infiniband/only.h>\n"
			_, err := run(t, ours, only)
			require.Error(t, err, "there is none")

			t.Setenv("C_INCLUDE_PATH", system)
			_, err = run(t, ours, both)
			require.NoError(t, err)
			_, err = run(t, ours, both+only)
			require.ErrorContains(t, err, "the compiler has taken infiniband/only.h from "+filepath.Join(system, "infiniband", "only.h"))
			messages, err := run(t, ours, both+"int x = y;\n")
			require.ErrorContains(t, err, "exit status 1")
			require.Contains(t, messages, "error: ")
			require.NotContains(t, messages, "stddef.h")

			// gcc tells where a link leads.
			linked := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(system, linked))
			t.Setenv("C_INCLUDE_PATH", linked)
			_, err = run(t, ours, both+only)
			require.ErrorContains(t, err, "the compiler has taken infiniband/only.h from ")
			require.NoError(t, os.Symlink(ours, linked+"ed"))
			_, err = run(t, linked+"ed", both)
			require.NoError(t, err)

			t.Setenv("C_INCLUDE_PATH", "")
			t.Setenv("CPATH", system) // comes before the folder
			_, err = run(t, ours, both)
			require.ErrorContains(t, err, "the compiler has taken infiniband/both.h from "+filepath.Join(system, "infiniband", "both.h"))
		})
	}
}

// inclusion is a line with one of rdma-core's headers.
var inclusion = regexp.MustCompile(`(?m)^\s*#\s*include\s*[<"](?:` + strings.Join(Folders, "|") + `)/`)

// TestSources shows that nothing else compiles with rdma-core's headers than
// what asks this package where they are from.
func TestSources(t *testing.T) {
	top := headertest.Top(t)
	var found []string
	require.NoError(t, filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "bin") {
			return filepath.SkipDir
		}
		if !slices.Contains([]string{".c", ".h", ".go", ".tmpl"}, filepath.Ext(path)) || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && inclusion.Match(text) {
			found = append(found, strings.TrimPrefix(path, top+string(filepath.Separator)))
		}
		return err
	}))
	require.Equal(t, []string{
		"gen/internal/inlinetest/testdata/fakes.c",
		"gen/internal/inlinetest/testdata/macros.h",
		"gen/internal/inlinetest/testdata/parts/mlx5.c",
		"gen/internal/scan/testdata/bad/includes-itself.h", // which only the scanner reads
		"gen/internal/scan/testdata/bad/missing-include.h",
		"gen/internal/scan/testdata/good/functions.h",
		"gen/testdata/headers/libfabric/umbrella.h",
		"gen/testdata/headers/libhns/umbrella.h",
		"gen/testdata/headers/libibmad/umbrella.h",
		"gen/testdata/headers/libibumad/umbrella.h",
		"gen/testdata/headers/libionic/umbrella.h",
		"gen/testdata/headers/libmana/umbrella.h",
		"gen/testdata/headers/libmlx4/umbrella.h",
		"gen/testdata/odd/infiniband/odd_inner.h",
		"headers/efa/umbrella.h",
		"headers/ibmad/umbrella.h",
		"headers/ibumad/umbrella.h",
		"headers/mlx5/umbrella.h",
		"headers/umbrella.h",
	}, found)
}
