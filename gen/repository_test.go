// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
	"github.com/verbena-go/verbena/gen/internal/headertest"
)

const (
	conventionsFile = "headers/conventions.txt"
	sinceFile       = "headers/since.txt"
	stringsFile     = "headers/strings.txt"
	manualFile      = "headers/manual.txt"
	ownFile         = "gen/internal/emit/c/own_libibverbs.c"
)

// repository is a copy of this one.
type repository struct {
	top    string
	output strings.Builder // of all runs of make upgrade
}

// newRepository copies what an upgrade needs, in the state in which rdma-core
// 44.0 is the newest that is known.
func newRepository(t *testing.T) *repository {
	t.Helper()
	r := copyRepository(t)
	r.forget(t)
	r.commit(t)
	return r
}

// copyRepository copies what an upgrade needs, and the folders named.
func copyRepository(t *testing.T, more ...string) *repository {
	t.Helper()
	r := &repository{top: t.TempDir()}
	top := headertest.Top(t)
	for _, name := range append([]string{"gen", "generated", "headers", "internal", "scripts", "docs", "tests/golden"}, more...) {
		require.NoError(t, os.CopyFS(filepath.Join(r.top, name), os.DirFS(filepath.Join(top, name))))
	}
	r.restore(t, "go.mod", "go.sum", "Makefile", ".gitignore")
	libc, err := filepath.Abs(headertest.Libc(t))
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(r.top, ".cache"), 0o700))
	require.NoError(t, os.Symlink(libc, filepath.Join(r.top, ".cache", "libc")))
	return r
}

// commit makes the state of the files the one that upgrade compares with.
func (r *repository) commit(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"git", "init", "-q"},
		{"git", "add", "."},
		{"git", "-c", "user.name=test", "-c", "user.email=test@example.com", "commit", "-q", "-m", "before"},
	} {
		out, err := r.run(args...)
		require.NoError(t, err, out)
	}
}

// run runs a command in the copy.
func (r *repository) run(args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = r.top
	cmd.Env = append(os.Environ(), "VERBENA_CACHE=", "MAKEFLAGS=", "GIT_CONFIG_GLOBAL=/dev/null")
	if args[0] == "make" { // gen, which is compiled once for all folders then
		cmd.Env = append(cmd.Env, "GOFLAGS=-trimpath")
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// upgrade runs make upgrade, which must end as ok says.
func (r *repository) upgrade(t *testing.T, ok bool, version, headers string) string {
	t.Helper()
	out, err := r.run("make", "--no-print-directory", "upgrade", "VERSION="+version, "HEADERS="+headers)
	r.output.WriteString(out)
	require.Equal(t, ok, err == nil, "%v\n%s", err, out)
	return out
}

// restore brings files as this repository has them.
func (r *repository) restore(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		text := read(t, filepath.Join(headertest.Top(t), name))
		require.NoError(t, os.WriteFile(filepath.Join(r.top, name), []byte(text), 0o644))
	}
}

func (r *repository) edit(t *testing.T, name string, change func(string) string) {
	t.Helper()
	path := filepath.Join(r.top, name)
	require.NoError(t, os.WriteFile(path, []byte(change(read(t, path))), 0o644))
}

// What the files of facts say, with the name that they say it of.
var (
	convention = regexp.MustCompile(`(?m)^(?:header|func|enum|macro) (\S+) +[^o\s].*\n`) // but for other=
	structLine = regexp.MustCompile(`(?m)^struct (\S+) +enum=.*\n`)
	enumWord   = regexp.MustCompile(` enum=[\w.:,]+`)
	release    = regexp.MustCompile(`(?m)^\d\S* (\w+ \S+).*\n`)
	text       = regexp.MustCompile(`(?m)^([A-Z]\w+) ".*\n`)
	manualWord = regexp.MustCompile(`(?m) (\w+)\b`)
	manualPage = regexp.MustCompile(`(?m)^\w+\(\d\)\n`) // of nothing
	ownBody    = regexp.MustCompile(`(?ms)^static [^;{}]*?\bown_(\w+)\([^;{}]*\)\n\{.*?^\}\n\n?`)
)

// parts are of the headers that stand on those of the upgrade.
var parts = []string{"efa", "ibmad", "ibumad", "mlx5"}

// restoreParts brings those back, with what gen makes of them anew.
func (r *repository) restoreParts(t *testing.T) {
	t.Helper()
	for _, name := range parts {
		folder := filepath.Join("headers", name)
		require.NoError(t, os.CopyFS(filepath.Join(r.top, folder), os.DirFS(filepath.Join(headertest.Top(t), folder))))
	}
	r.gen(t, "emit")
	r.gen(t, "check", "-headers", headertest.Dir(t, "65.0"), "-update")
	coverage := r.gen(t, "coverage")
	r.edit(t, "docs/proof/coverage.md", func(string) string { return coverage })
}

// forget leaves what is true of rdma-core 44.0.
func (r *repository) forget(t *testing.T) {
	t.Helper()
	facts := filepath.Join(r.top, "headers")
	for _, name := range parts {
		for _, made := range []string{"headers/" + name, "generated/lib" + name, "tests/golden/lib" + name + ".layout"} {
			require.NoError(t, os.RemoveAll(filepath.Join(r.top, made)))
		}
	}
	for _, version := range []string{"56.1", "65.0"} {
		require.NoError(t, os.Remove(filepath.Join(facts, "api", version+".json")))
	}
	a, err := api.Load(filepath.Join(facts, "api", "44.0.json"))
	require.NoError(t, err)
	known := map[string]bool{}
	for _, name := range a.Names() {
		known[name.Name], known[name.String()] = true, true
	}
	for _, h := range a.Headers {
		known[h.Name] = true
	}
	for _, m := range a.Unvalued {
		known[m.Name] = true
	}
	keep := func(pattern *regexp.Regexp) func(string) string {
		return func(text string) string {
			return pattern.ReplaceAllStringFunc(text, func(match string) string {
				if known[pattern.FindStringSubmatch(match)[1]] {
					return match
				}
				return ""
			})
		}
	}
	r.edit(t, conventionsFile, keep(convention))
	r.edit(t, conventionsFile, keep(structLine))
	r.edit(t, conventionsFile, func(text string) string {
		return enumWord.ReplaceAllStringFunc(text, func(word string) string {
			pairs := slices.DeleteFunc(strings.Split(strings.TrimPrefix(word, " enum="), ","), func(pair string) bool {
				_, enum, _ := strings.Cut(pair, ":")
				return !known[enum]
			})
			if len(pairs) == 0 {
				return ""
			}
			return " enum=" + strings.Join(pairs, ",")
		})
	})
	r.edit(t, sinceFile, keep(release))
	r.edit(t, stringsFile, keep(text))
	r.edit(t, ownFile, keep(ownBody))
	r.edit(t, manualFile, func(text string) string {
		var b strings.Builder
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "#") {
				line = keep(manualWord)(line)
			}
			b.WriteString(line)
		}
		return manualPage.ReplaceAllString(b.String(), "")
	})
	r.gen(t, "emit")
	r.gen(t, "check", "-headers", headertest.Dir(t, "44.0"), "-update")
	coverage := r.gen(t, "coverage")
	r.edit(t, "docs/proof/coverage.md", func(string) string { return coverage })
}

// gen runs the copy's own generator.
func (r *repository) gen(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.run(append([]string{"go", "run", "-trimpath", "./gen"}, args...)...)
	require.NoError(t, err, out)
	return out
}
