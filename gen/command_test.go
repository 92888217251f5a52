// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/headertest"
)

// goTool is the go command, and an environment whose PATH has nothing else.
func goTool(t testing.TB) (path string, env []string) {
	t.Helper()
	path, err := exec.LookPath("go")
	require.NoError(t, err)
	path, err = filepath.EvalSymlinks(path)
	require.NoError(t, err)
	return path, append(os.Environ(), "PATH="+filepath.Dir(path))
}

// runAtTop runs a command at the top of the repository and returns what it
// used.
func runAtTop(t testing.TB, env []string, name string, args ...string) *syscall.Rusage {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = headertest.Top(t), env
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return cmd.ProcessState.SysUsage().(*syscall.Rusage)
}

// TestWithoutCompiler scans and emits where PATH has Go's own tools only, and
// finds what is committed.
func TestWithoutCompiler(t *testing.T) {
	newest, top := headertest.Newest(t), headertest.Top(t)
	headers, libc := headertest.Dir(t, newest), headertest.Libc(t)
	tool, env := goTool(t)
	for _, compiler := range []string{"cc", "gcc", "clang"} {
		_, err := os.Stat(filepath.Join(filepath.Dir(tool), compiler))
		if err == nil {
			t.Skipf("%s lies beside go", compiler)
		}
	}
	facts, out := filepath.Join(t.TempDir(), "headers"), t.TempDir()
	require.NoError(t, os.CopyFS(facts, os.DirFS(filepath.Join(top, "headers"))))
	require.NoError(t, os.RemoveAll(filepath.Join(facts, "api", newest+".json")))
	runAtTop(t, env, tool, "run", "./gen", "scan", "-facts", facts, "-headers", headers, "-libc", libc, "-version", newest)
	runAtTop(t, env, tool, "run", "./gen", "emit", "-facts", facts, "-out", out, "-skeleton", filepath.Join(out, "capi"),
		"-libraries", filepath.Join(out, "c"))
	for _, dir := range []string{"libibverbs", "librdmacm"} {
		entries, err := os.ReadDir(filepath.Join(out, dir))
		require.NoError(t, err)
		for _, e := range entries {
			want := read(t, filepath.Join(top, "generated", dir, e.Name()))
			require.True(t, want == read(t, filepath.Join(out, dir, e.Name())), "%s/%s differs", dir, e.Name())
		}
	}
}

// BenchmarkCommands measures the program itself: time, processor time, and peak
// memory.
func BenchmarkCommands(b *testing.B) {
	tool, env := goTool(b)
	program := filepath.Join(b.TempDir(), "gen")
	runAtTop(b, env, tool, "build", "-o", program, "./gen")
	eachCommand(b, func(b *testing.B, args []string) {
		var spent time.Duration
		var peak int64
		for b.Loop() {
			used := runAtTop(b, env, program, args...)
			spent += processorTime(used)
			peak = max(peak, int64(used.Maxrss))
		}
		reportProcessor(b, spent)
		b.ReportMetric(float64(peak)/1024, "MiB-peak")
	})
}

// BenchmarkInProcess measures the same in this process, for a profile.
func BenchmarkInProcess(b *testing.B) {
	eachCommand(b, func(b *testing.B, args []string) {
		var before, after syscall.Rusage
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &before))
		for b.Loop() {
			require.NoError(b, run(args))
		}
		require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &after))
		reportProcessor(b, processorTime(&after)-processorTime(&before))
	})
}

// eachCommand has measure run the commands that scan the newest headers and
// make the bindings, in folders of their own.
func eachCommand(b *testing.B, measure func(b *testing.B, args []string)) {
	newest, top := headertest.Newest(b), headertest.Top(b)
	headers, libc := headertest.Dir(b, newest), headertest.Libc(b)
	facts := filepath.Join(b.TempDir(), "headers")
	require.NoError(b, os.CopyFS(facts, os.DirFS(filepath.Join(top, "headers"))))
	for _, args := range [][]string{
		{"scan", "-facts", facts, "-headers", headers, "-libc", libc, "-version", newest},
		{"emit", "-facts", facts, "-out", b.TempDir(), "-skeleton", b.TempDir(), "-libraries", b.TempDir()},
	} {
		b.Run(args[0], func(b *testing.B) { measure(b, args) })
	}
}

func processorTime(used *syscall.Rusage) time.Duration {
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func reportProcessor(b *testing.B, spent time.Duration) {
	b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "processor-ms/op")
}

// BenchmarkColdBuild builds the bindings with an empty cache, with and without
// cgo; the difference is what cgo and the C compiler cost.
func BenchmarkColdBuild(b *testing.B) {
	tool, _ := goTool(b)
	for _, cgo := range []string{"0", "1"} {
		b.Run("cgo="+cgo, func(b *testing.B) {
			for b.Loop() {
				env := append(os.Environ(), "GOCACHE="+b.TempDir(), "CGO_ENABLED="+cgo)
				runAtTop(b, env, tool, "build", "./generated/...")
			}
			b.ReportMetric(float64(runtime.NumCPU()), "CPUs")
		})
	}
}
