// SPDX-License-Identifier: Apache-2.0

// Package headertest finds rdma-core's real headers for tests.
package headertest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Top returns the top of the repository.
func Top(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	require.True(t, ok)
	top := filepath.Join(filepath.Dir(file), "..", "..", "..")
	require.FileExists(t, filepath.Join(top, "go.mod"))
	return top
}

// Dir returns the folder with the headers of a version and their libraries, as
// scripts/fetch-headers brought them. Without them the test is skipped, or
// fails if VERBENA_REQUIRE_HEADERS is 1.
func Dir(t testing.TB, version string) string {
	t.Helper()
	cache := os.Getenv("VERBENA_CACHE")
	if cache == "" {
		cache = filepath.Join(Top(t), ".cache")
	}
	dir := filepath.Join(cache, "headers", version)
	_, headers := os.Stat(filepath.Join(dir, ".complete"))
	_, libraries := os.Stat(filepath.Join(dir, "usr", "lib"))
	if headers == nil && libraries == nil {
		return dir
	}
	if os.Getenv("VERBENA_REQUIRE_HEADERS") == "1" {
		t.Fatalf("no headers and libraries in %s, and VERBENA_REQUIRE_HEADERS is 1", dir)
	}
	t.Skipf("no headers and libraries in %s; scripts/fetch-headers brings them", dir)
	return ""
}
