// SPDX-License-Identifier: Apache-2.0

// Package headertest finds rdma-core's real headers for tests.
package headertest

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/gen/internal/api"
)

// Versions returns the versions of the snapshots in headers/api, oldest first.
// The bindings are made from the last one.
func Versions(t testing.TB) []string {
	t.Helper()
	versions, err := api.Versions(filepath.Join(Top(t), "headers", "api"))
	require.NoError(t, err)
	require.NotEmpty(t, versions)
	return versions
}

// Newest returns the newest version of the snapshots.
func Newest(t testing.TB) string {
	t.Helper()
	versions := Versions(t)
	return versions[len(versions)-1]
}

// Top returns the root folder of the repository.
func Top(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	top := filepath.Join(filepath.Dir(file), "..", "..", "..")
	require.FileExists(t, filepath.Join(top, "go.mod"))
	return top
}

// Dir returns the folder into which scripts/fetch-headers has downloaded the
// headers and libraries of a version. If they are missing, Dir skips the test,
// or fails it if VERBENA_REQUIRE_HEADERS is 1. If a file in the folder has
// changed, the go command does not use a cached result of the test, unless the
// folder is outside the module.
func Dir(t testing.TB, version string) string {
	t.Helper()
	dir := filepath.Join(Cache(t), "headers", version)
	_, headers := os.Stat(filepath.Join(dir, ".complete"))
	_, libraries := os.Stat(filepath.Join(dir, "usr", "lib"))
	if headers != nil || libraries != nil {
		missing(t, "no headers and libraries in %s; scripts/fetch-headers brings them", dir)
	}
	seen(t, dir)
	return dir
}

// Libc returns the folder into which scripts/fetch-libc has downloaded musl's
// and the kernel's headers. If it is missing, Libc skips the test, or fails it
// if VERBENA_REQUIRE_HEADERS is 1.
func Libc(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(Cache(t), "libc")
	if _, err := os.Stat(filepath.Join(dir, ".debian-fetch")); err != nil {
		missing(t, "no headers of libc in %s; scripts/fetch-libc brings them", dir)
	}
	return dir
}

// Cache returns the folder into which the scripts download.
func Cache(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("VERBENA_CACHE"); dir != "" {
		return dir
	}
	return filepath.Join(Top(t), ".cache")
}

func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("VERBENA_REQUIRE_HEADERS") == "1" {
		t.Fatalf(format+", and VERBENA_REQUIRE_HEADERS is 1", args...)
	}
	t.Skipf(format, args...)
}

// seen reads all folders in dir. For its cache of test results, the go command
// records what the test's process reads, but not what C compilers that the test
// runs read.
func seen(t testing.TB, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { return nil }))
}
