// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// consumer is a module that imports this one, in a folder of its own.
type consumer struct {
	t   *testing.T
	dir string
}

func newConsumer(t *testing.T) consumer {
	t.Helper()
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	program, err := os.ReadFile("testdata/consumer/main.go")
	require.NoError(t, err)
	c := consumer{t, t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "main.go"), program, 0o600))
	ours, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	mod := "module example.com/consumer\n" + regexp.MustCompile(`(?m)^go .*\n`).FindString(string(ours)) +
		"replace github.com/verbena-go/verbena => " + top + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(c.dir, "go.mod"), []byte(mod), 0o600))
	c.run(nil, "go", "mod", "tidy")
	return c
}

// run runs a command in the module and returns the lines that it prints.
func (c consumer) run(env []string, command ...string) []string {
	c.t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), append([]string{"GOFLAGS=-mod=mod", "GOWORK=off"}, env...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(c.t, err, "%v: %s", command, &stderr)
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// A program that imports rdmacm compiles no other module, requires no other,
// and has in the graph of modules only what the generator and the tests here
// are made of.
func TestConsumerModules(t *testing.T) {
	c := newConsumer(t)
	const us = "github.com/verbena-go/verbena"
	require.Equal(t, []string{us + " v0.0.0-00010101000000-000000000000"},
		c.run(nil, "go", "list", "-m", "-f", "{{if and (not .Main) (not .Indirect)}}{{.Path}} {{.Version}}{{end}}", "all"))

	compiled := c.run(nil, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".")
	slices.Sort(compiled)
	require.Equal(t, []string{"example.com/consumer", us}, slices.Compact(compiled))

	graph := c.run(nil, "go", "list", "-m", "all")
	t.Logf("%d modules:\n%s", len(graph), strings.Join(graph, "\n"))
	for _, line := range graph[1:] {
		path, _, _ := strings.Cut(line, " ")
		require.True(t, path == us || slices.ContainsFunc([]string{
			"github.com/dave/jennifer", "modernc.org/", "github.com/remyoudompheng/bigfft", // the generator's
			"github.com/spf13/pflag",                     // the programs'
			"github.com/stretchr/testify", "go.yaml.in/", // the tests'
		}, func(prefix string) bool { return strings.HasPrefix(path, prefix) }), "%s is new in the graph of programs that import rdmacm", line)
	}
}

// go get takes the module as it is here: no file has a name or a size that Go's
// modules may not have. The program of the README then is built from the same
// files as in TestReadmeProgramRuns, which builds it here, where packages are
// in the cache.
func TestConsumerGets(t *testing.T) {
	notShort(t, "makes a repository and downloads it")
	if _, err := os.Stat("../.git"); err != nil {
		t.Skip("no repository: ", err)
	}
	c := consumer{t, t.TempDir()}
	repository, program := filepath.Join(c.dir, "verbena"), filepath.Join(c.dir, "hello")
	require.NoError(t, os.Mkdir(program, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(program, "main.go"), []byte(readmeProgram(t)), 0o600))
	top, err := filepath.Abs("..")
	require.NoError(t, err)
	const files = `go list -deps -f '{{with .Module}}{{.Path}} {{end}}{{.ImportPath}} {{.GoFiles}} {{.CgoFiles}} {{.CFiles}} {{.HFiles}} {{.SFiles}}' `
	gets := c.run([]string{
		"TOP=" + top, "REPOSITORY=" + repository, "PROGRAM=" + program,
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://" + repository + ".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/verbena-go/verbena",
		"GOPRIVATE=github.com/verbena-go", "GOMODCACHE=" + filepath.Join(c.dir, "mod"), "GOFLAGS=-modcacherw", "CGO_ENABLED=1",
	}, "bash", "-euc", `
		git init -q "$REPOSITORY"
		(cd "$TOP" && git ls-files -z -co --exclude-standard | while IFS= read -rd '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done |
			xargs -0 cp --parents -Pt "$REPOSITORY")
		cd "$REPOSITORY"
		git add -A
		git -c user.name=t -c user.email=t@example.com commit -qm all
		cd "$PROGRAM"
		go mod init hello
		go get github.com/verbena-go/verbena
		`+files+` . | grep "^github.com/verbena-go/verbena "`)
	has := c.run([]string{"TOP=" + top, "CGO_ENABLED=1", "GOFLAGS="}, "bash", "-euc", `
		cd "$TOP"
		`+files+` ./rdmacm ./softroce | grep "^github.com/verbena-go/verbena "`)
	require.ElementsMatch(t, has, gets)
	require.Contains(t, strings.Join(has, "\n"), "stubs.h")
}

// Without a C compiler Go leaves cgo out and says nothing. So does a build with
// CGO_ENABLED=0. The program says it, in every package.
func TestConsumerWithoutCompiler(t *testing.T) {
	notShort(t, "compiles every package without cgo")
	c := newConsumer(t)
	tool, err := exec.LookPath("go")
	require.NoError(t, err)
	bare := t.TempDir() // has go and nothing else
	require.NoError(t, os.Symlink(tool, filepath.Join(bare, "go")))
	for name, env := range map[string][]string{
		"no compiler":   {"PATH=" + bare, "CGO_ENABLED=", "CC="},
		"CGO_ENABLED=0": {"CGO_ENABLED=0"},
	} {
		lines := c.run(env, "go", "run", ".")
		require.Len(t, lines, 5, name)
		for _, line := range lines {
			require.Contains(t, line, ": unsupported=true: ", name)
			require.Contains(t, line, ": this program was built without cgo: build it again with CGO_ENABLED=1 where there is a C compiler, such as gcc")
		}
	}
}

// tools.go names the programs that tools/go.mod pins, all of them, and none is
// required by the module itself.
func TestTools(t *testing.T) {
	source, err := os.ReadFile("../tools.go")
	require.NoError(t, err)
	var named []string
	for line := range strings.Lines(string(source)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), `_ "`); ok {
			named = append(named, strings.TrimSuffix(path, `"`))
		}
	}
	pinned, err := exec.Command("go", "list", "-modfile=../tools/go.mod", "-f", "{{.ImportPath}}", "tool").Output()
	require.NoError(t, err)
	require.ElementsMatch(t, strings.Fields(string(pinned)), named)
}
