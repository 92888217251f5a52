// SPDX-License-Identifier: Apache-2.0

package inlinetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/emit"
	"github.com/verbena-go/verbena/gen/internal/headertest"
	"github.com/verbena-go/verbena/gen/internal/included"
)

func input(t testing.TB) emit.Input {
	t.Helper()
	in, err := emit.Load(filepath.Join(headertest.Top(t), "headers"))
	require.NoError(t, err)
	return in
}

// cc returns the C compiler that cgo would use.
func cc(t testing.TB) string {
	t.Helper()
	name := os.Getenv("CC")
	if name == "" {
		name = "cc"
	}
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("no C compiler: %v", err)
	}
	return name
}

// sourceFiles are the files that the program is compiled from.
var sourceFiles = []string{"real", "libibverbs", "librdmacm", "state", "fakes", "compare"}

// build compiles the program in dir, with a copy of the generated stubs that
// change may edit, and options for what is generated. That is compiled without
// optimisation, which could leave out a NULL that the headers' functions
// follow.
func build(t *testing.T, dir string, change func(generated string), options ...string) (program string) {
	t.Helper()
	headers, compiler, top := headertest.Dir(t, headertest.Newest(t)), cc(t), headertest.Top(t)
	generated := filepath.Join(dir, "generated")
	require.NoError(t, os.CopyFS(generated, os.DirFS(filepath.Join(top, "generated"))))
	require.NoError(t, os.CopyFS(dir, os.DirFS("testdata")))
	if change != nil {
		change(generated)
	}
	files, err := Sources(input(t), filepath.Join(top, "headers", "umbrella.h"), generated)
	require.NoError(t, err)
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	roots, err := included.RootsOf(compiler)
	require.NoError(t, err)
	include := filepath.Join(headers, "usr", "include")
	run := func(args ...string) {
		cmd := exec.Command(compiler, args...)
		cmd.Dir = dir
		if out, err := roots.Run(cmd, include); err != nil {
			t.Errorf("%s %s: %v\n%s", compiler, strings.Join(args, " "), err, out)
		}
	}
	var group sync.WaitGroup
	for _, name := range sourceFiles {
		args := []string{"-c", "-isystem", include, name + ".c"}
		if files[name+".c"] != "" {
			args = append(append(args, "-O0", "-w"), options...)
		} else {
			args = append(args, "-O2", "-Wall", "-Wextra", "-Werror")
		}
		group.Go(func() { run(args...) })
	}
	group.Wait()
	args := append([]string{"-o", "program"}, options...)
	for _, name := range sourceFiles {
		args = append(args, name+".o")
	}
	run(args...)
	require.False(t, t.Failed())
	return filepath.Join(dir, "program")
}

// report is what the program says of a function.
type report struct {
	cases, calls, returned, crashed, asserted, different int
	text                                                 string // of the first difference
}

// compare runs the program; the result is keyed by function.
func compare(t *testing.T, program string, cases int) map[string]report {
	t.Helper()
	out, err := exec.Command(program, strconv.Itoa(cases)).Output()
	require.NoError(t, err, "%s", out)
	reports, text := map[string]report{}, ""
	for line := range strings.Lines(string(out)) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(words) != 7 {
			text += line
			continue
		}
		var n [6]int
		for i, word := range words[1:] {
			n[i], err = strconv.Atoi(word)
			require.NoError(t, err, line)
		}
		reports[words[0]] = report{n[0], n[1], n[2], n[3], n[4], n[5], text}
		text = ""
	}
	return reports
}
