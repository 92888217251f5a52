// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl_test

import (
	"errors"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/dl"
)

func TestMissingLibrary(t *testing.T) {
	l := dl.Library{
		Name: "libverbena-has-no-such.so.1", Debian: "libnone1", Fedora: "none",
		Symbols: []string{"getpid"},
		Set:     func(int, unsafe.Pointer) { t.Error("a library that is not there has a symbol") },
	}
	err := l.Load()
	var missing *cerr.LibraryError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, l.Name, missing.Library)
	require.Equal(t, "libnone1", missing.Debian)
	require.Equal(t, "none", missing.Fedora)
	require.Contains(t, missing.Reason, "libverbena-has-no-such.so.1: cannot open shared object file")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "on Debian and Ubuntu install libnone1, on Fedora none")
	require.Same(t, err, l.Load(), "the first answer stays")
}

func TestSymbols(t *testing.T) {
	found := map[int]unsafe.Pointer{}
	l := dl.Library{
		Name:    "libc.so.6",
		Symbols: []string{"getpid", "verbena_has_no_such", "getppid"},
		Since:   map[string]dl.Since{"verbena_has_no_such": {Release: "99", Node: "NONE_1.2"}},
		Set:     func(i int, f unsafe.Pointer) { found[i] = f },
	}
	require.NoError(t, l.Load())
	require.Len(t, found, 2)
	require.NotNil(t, found[0])
	require.NotNil(t, found[2])
	require.NotEqual(t, found[0], found[2])

	err := l.Lacks("verbena_has_no_such")
	var missing *cerr.SymbolError
	require.ErrorAs(t, err, &missing)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.EqualError(t, err, "verbena_has_no_such: the installed libc.so.6 does not have it; rdma-core 99 added it (NONE_1.2)")
	require.EqualError(t, l.Lacks("other"), "other: the installed libc.so.6 does not have it")
}

func TestLoadOnce(t *testing.T) {
	calls := 0
	l := dl.Library{Name: "libc.so.6", Symbols: []string{"getpid"}, Set: func(int, unsafe.Pointer) { calls++ }}
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			if err := l.Load(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	require.Equal(t, 1, calls)
}
