// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/check"
	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/layout"
)

// others are the libraries whose headers TestOtherHeaders binds, each with
// whether the headers build on libibverbs'. testdata/headers has what was
// written by hand.
var others = []struct {
	name   string
	isPart bool
}{
	{"libibumad", false},
	{"libibmad", false},
	{"libmana", true},
	{"libmlx4", true},
	{"libhns", true},
	{"libionic", true},
	{"libnlroute", false},
	{"liburing", false},
	{"libfabric", false},
	{"libnuma", false},
	{"librados", false},
}

// workshop is a folder in which headers are bound as a person would do it.
type workshop struct {
	dir, headers, others, libc, compilers string
}

// TestOtherHeaders takes headers that the generator was not written for to
// packages that build, and has the compilers that VERBENA_OTHERS names, as -cc
// of gen check does, confirm them.
func TestOtherHeaders(t *testing.T) {
	compilers := os.Getenv("VERBENA_OTHERS")
	if compilers == "" {
		t.Skip("VERBENA_OTHERS names no C compilers; scripts/test check does")
	}
	top := headertest.Top(t)
	w := workshop{
		dir: t.TempDir(), headers: headertest.Dir(t, headertest.Newest(t)), others: filepath.Join(headertest.Cache(t), "others"), libc: headertest.Libc(t),
		compilers: compilers,
	}
	require.FileExists(t, filepath.Join(w.others, ".complete"), "scripts/fetch-others brings the headers")
	require.NoError(t, os.CopyFS(filepath.Join(w.dir, "headers"), os.DirFS(filepath.Join(top, "headers"))))
	w.module(t)
	for _, o := range others {
		t.Run(o.name, func(t *testing.T) { w.bind(t, o.name, o.isPart) })
	}
	t.Run("build", func(t *testing.T) {
		out := w.test(t)
		require.Equal(t, len(others), strings.Count(out, "/generated/"), "%s", out)
	})
}

// module makes the folder a module, whose packages may import this one's
// internal packages.
func (w workshop) module(t *testing.T) {
	module := "module github.com/verbena-go/verbena/others\n\ngo 1.26.0\n\nrequire (\n\tgithub.com/stretchr/testify v1.12.1\n" +
		"\tgithub.com/verbena-go/verbena v0.0.0\n)\n\nreplace github.com/verbena-go/verbena => " + headertest.Top(t) + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "go.mod"), []byte(module), 0o600))
	sums, err := os.ReadFile(filepath.Join(headertest.Top(t), "go.sum"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "go.sum"), sums, 0o600))
}

// test runs the tests of the packages that need no library.
func (w workshop) test(t *testing.T, environment ...string) string {
	args := []string{"test", "-mod=mod", "-run", "^(TestLayout|TestUnions|TestEnums)$"}
	if len(environment) > 0 { // another machine's program
		args = append(args, "-vet=off", "-exec", environment[0])
	}
	cmd := exec.Command("go", append(args, "./generated/...")...)
	cmd.Dir = w.dir
	if len(environment) > 0 {
		cmd.Env = append(os.Environ(), environment[1:]...)
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "warning", "the C compiler's")
	return string(out)
}

func (w workshop) bind(t *testing.T, name string, isPart bool) {
	facts, headers := filepath.Join(w.dir, name), w.others
	if isPart {
		facts, headers = filepath.Join(w.dir, "headers", name), w.headers
	}
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(headertest.Top(t), "gen", "testdata", "headers", name))))
	require.NoError(t, os.Mkdir(filepath.Join(facts, "api"), 0o700))
	for _, empty := range []string{"since.txt", "manual.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(facts, empty), nil, 0o600))
	}
	table := filepath.Join(facts, "conventions.txt")
	byHand, err := os.ReadFile(table)
	require.NoError(t, err)
	var proposed bytes.Buffer
	require.NoError(t, runPropose(facts, headers, w.libc, headertest.Newest(t), &proposed, io.Discard))
	require.NoError(t, os.WriteFile(table, append(byHand, proposed.Bytes()...), 0o600))

	require.NoError(t, runScan(facts, headers, w.libc, headertest.Newest(t), "", ""))
	generated := filepath.Join(w.dir, "generated")
	require.NoError(t, runEmit(facts, generated, "", ""))
	golden := filepath.Join(w.dir, "tests", "golden")
	require.NoError(t, os.MkdirAll(golden, 0o700))
	require.NoError(t, runCheck(checkOptions{
		facts: facts, headers: headers, libc: w.libc, generated: generated, golden: golden, compilers: w.compilers, update: true,
	}))
	w.row(t, facts, name, string(byHand), proposed.String())
}

// row logs a row of the table in docs/proof/other-headers.md.
func (w workshop) row(t *testing.T, facts, name, byHand, proposed string) {
	in, err := emit.Load(facts)
	require.NoError(t, err)
	symbols, err := emit.Symbols(in)
	require.NoError(t, err)
	t.Logf("| %s | %d | %d | %d | %d | %d | %d | %d |", name, lines(byHand), lines(proposed),
		len(in.API.Functions), len(symbols[name]), len(in.API.Structs), values(in.API), len(in.API.Typedefs)+len(in.API.Variables))
}

func lines(text string) (n int) {
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	return n
}

func values(a *api.API) int {
	n := len(a.Macros)
	for _, e := range a.Enums {
		n += len(e.Values)
	}
	return n
}

// TestKindsInGo binds headers with kinds of C that rdma-core has not, and shows
// that Go finds each member where C has it, also on machines with other rules
// for bit-fields.
func TestKindsInGo(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a package")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	top := headertest.Top(t)
	w := workshop{dir: t.TempDir()}
	w.module(t)
	facts := filepath.Join(w.dir, "libkinds")
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(top, "gen", "testdata", "kinds"))))
	require.NoError(t, os.CopyFS(filepath.Join(facts, "shim"), os.DirFS(filepath.Join(top, "headers", "shim"))))
	require.NoError(t, os.Mkdir(filepath.Join(facts, "api"), 0o700))
	headers := filepath.Join(top, "gen", "internal", "scan", "testdata", "good")
	require.NoError(t, runScan(facts, headers, "", "1.0", "", ""))
	require.NoError(t, runEmit(facts, filepath.Join(w.dir, "generated"), "", ""))
	a, err := api.Load(filepath.Join(facts, "api", "1.0.json"))
	require.NoError(t, err)
	golden := filepath.Join(w.dir, "tests", "golden")
	require.NoError(t, os.MkdirAll(golden, 0o700))
	for _, arch := range layout.Arches {
		g := check.Golden{Dir: golden, API: a, Home: func(string) string { return "libkinds" }, Update: true}
		_, err := g.Check(arch)
		require.NoError(t, err)
	}
	require.Contains(t, w.test(t), "ok ")
	for arch, emulator := range map[string]string{"arm64": "qemu-aarch64", "s390x": "qemu-s390x"} {
		if _, err := exec.LookPath(emulator); err == nil {
			require.Contains(t, w.test(t, emulator, "GOARCH="+arch, "CGO_ENABLED=0"), "ok ")
		}
	}
}

// TestProposeNames proposes names for what would be called alike.
func TestProposeNames(t *testing.T) {
	facts := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(facts, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("umbrella.h", "#include <x.h>\n")
	require.NoError(t, os.CopyFS(filepath.Join(facts, "shim"), os.DirFS(filepath.Join(headertest.Top(t), "headers", "shim"))))
	write("usr/include/x.h", "struct x_call { int a; };\nint x_call(struct x_call *c);\nint x_send(void);\nint __x_send(int);\nconst char *x_name(int);\n"+
		"void *x_open(const char *, ...);\nstatic inline int x_add(int a) { return a + 1; }\nenum x_kind { X_A = 1, X_B = 2, X_C = 4 };\n#define X_CALL(a) a\n")
	write("conventions.txt", "library libx libx.so.1 prefix=x_ debian=x fedora=x program=-\nheader x.h libx\n")
	var out, notes bytes.Buffer
	require.NoError(t, runPropose(facts, facts, "", "1.0", &out, &notes))
	require.Equal(t, `enum x_kind flags
func x_call value
func x_send value
func __x_send value name=SendInternal
func x_name string
func x_open pointer skip="variadic, and what it takes depends on the other arguments"
func x_add value skip="inline with logic of its own"
struct x_call name=CallStruct
macro X_CALL skip="it has no value"
`, out.String())
	require.EqualError(t, runPropose(facts, "", "", "1.0", &out, &notes), "propose needs -headers and -version")
}
