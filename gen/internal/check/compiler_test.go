// SPDX-License-Identifier: Apache-2.0

package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

type testCompiler struct {
	name, arch string
	command    []string
	brings     string // the package of Debian
}

// compilers returns those that make check asks.
func compilers(t *testing.T) []testCompiler {
	t.Helper()
	clang := "clang-16" // the first for loong64; the plain name may be an older one
	if _, err := exec.LookPath(clang); err != nil {
		clang = "clang"
	}
	libc := filepath.Join(headertest.Top(t), ".cache", "loong64", "usr", "loongarch64-linux-gnu")
	loong64 := testCompiler{
		"clang loong64", "loong64",
		[]string{clang, "--target=loongarch64-linux-gnu", "--sysroot=" + libc},
		"clang-16",
	}
	if _, err := os.Stat(libc); err != nil {
		loong64.command, loong64.brings = []string{"no-libc-for-loong64"}, "libc6-dev-loong64-cross, which make setup unpacks"
	}
	return []testCompiler{
		{"gcc arm64", "arm64", []string{"aarch64-linux-gnu-gcc"}, "gcc-aarch64-linux-gnu"},
		{"gcc ppc64le", "ppc64le", []string{"powerpc64le-linux-gnu-gcc"}, "gcc-powerpc64le-linux-gnu"},
		{"gcc riscv64", "riscv64", []string{"riscv64-linux-gnu-gcc"}, "gcc-riscv64-linux-gnu"},
		{"gcc s390x", "s390x", []string{"s390x-linux-gnu-gcc"}, "gcc-s390x-linux-gnu"},
		{"gcc amd64", "amd64", []string{"x86_64-linux-gnu-gcc"}, "gcc on amd64"},
		{"clang amd64", "amd64", []string{"clang", "--target=x86_64-linux-gnu"}, "clang on amd64"},
		loong64,
	}
}

func (tc testCompiler) find(t *testing.T) *Compiler {
	t.Helper()
	if _, err := exec.LookPath(tc.command[0]); err != nil {
		t.Skipf("no %s; it is in Debian's package %s", tc.command[0], tc.brings)
	}
	c, err := Find(tc.command...)
	require.NoError(t, err)
	return c
}

// native returns the C compiler that cgo would use.
func native(t *testing.T) *Compiler {
	t.Helper()
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	return testCompiler{command: []string{name}, brings: "gcc"}.find(t)
}

// natives returns that compiler, and clang where it is installed.
func natives(t *testing.T) []*Compiler {
	t.Helper()
	all := []*Compiler{native(t)}
	if _, err := exec.LookPath("clang"); err == nil && all[0].String() != "clang" {
		c, err := Find("clang")
		require.NoError(t, err)
		all = append(all, c)
	}
	return all
}

func archOf(t *testing.T, name string) layout.Arch {
	t.Helper()
	for _, arch := range layout.Arches {
		if arch.Name == name {
			return arch
		}
	}
	require.Fail(t, "no architecture "+name)
	return layout.Arch{}
}

func TestEveryArchHasMacros(t *testing.T) {
	for _, arch := range layout.Arches {
		require.NotEmpty(t, predefined[arch.Name], arch.Name)
	}
	require.Len(t, predefined, len(layout.Arches))
}

func TestFindErrors(t *testing.T) {
	_, err := Find()
	require.EqualError(t, err, "no C compiler is named")

	_, err = Find("verbena-has-no-such-compiler")
	require.ErrorIs(t, err, exec.ErrNotFound)
	require.ErrorContains(t, err, "verbena-has-no-such-compiler does not work: ")

	_, err = Find(native(t).String(), "--verbena-has-no-such-option")
	require.ErrorContains(t, err, " does not work: exit status 1\n")
	require.ErrorContains(t, err, "verbena-has-no-such-option")
}

// TestOtherArch shows that big-endian, 32-bit and non-Linux compilers are not
// taken for one that is known.
func TestOtherArch(t *testing.T) {
	for name, macros := range map[string]string{
		"mips64":       "#define __linux__ 1\n#define __LP64__ 1\n#define __mips64 1\n",
		"ppc64":        "#define __linux__ 1\n#define __LP64__ 1\n#define __powerpc64__ 1\n#define __BIG_ENDIAN__ 1\n",
		"x32":          "#define __linux__ 1\n#define __x86_64__ 1\n#define __ILP32__ 1\n",
		"darwin-amd64": "#define __APPLE__ 1\n#define __LP64__ 1\n#define __x86_64__ 1\n",
		"nothing":      "",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name+"-gcc")
			script := "#!/bin/sh\ncat >/dev/null\ncat <<-'EOF'\n" + macros + "EOF\n"
			require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
			_, err := Find(path)
			require.EqualError(t, err, path+" compiles for another architecture than "+
				"linux/amd64, linux/arm64, linux/loong64, linux/ppc64le, linux/riscv64, linux/s390x")
		})
	}
}

// TestBadDeclarations shows that declarations which do not compile are no
// difference but an error that says why.
func TestBadDeclarations(t *testing.T) {
	c := native(t)
	facts, err := Facts(small(t), c.Arch)
	require.NoError(t, err)
	for name, tt := range map[string]struct{ text, want string }{
		"refused":    {"#error not for you\n", "not for you"},
		"no include": {"#include <verbena/nowhere.h>\n", "verbena/nowhere.h"},
		"syntax":     {"struct {\n", "expected"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bad.h")
			require.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
			_, err := Compare(c, facts, Declarations{Name: "bad.h", Source: path})
			require.ErrorContains(t, err, c.String()+" cannot compile bad.h: exit status 1\n")
			require.ErrorContains(t, err, tt.want)
		})
	}
	_, err = Compare(c, facts, Declarations{Name: "none", Source: "testdata/none.h"})
	require.ErrorContains(t, err, "testdata/none.h")
}

func TestShorten(t *testing.T) {
	require.Empty(t, shorten(""))
	require.Equal(t, "\na\nb", shorten("a\nb\n"))
	require.Equal(t, "\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n... and 2 lines more", shorten("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n"))
}
