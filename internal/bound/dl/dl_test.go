// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package dl

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestLoad(t *testing.T) {
	found := map[int]unsafe.Pointer{}
	l := &Library{Name: "libm.so.6", Symbols: []string{"cos", "no_such_function", "sin"}, Set: func(i int, f unsafe.Pointer) { found[i] = f }}
	require.NoError(t, l.Load())
	require.NoError(t, l.Load())
	require.Len(t, found, 2)
	require.NotNil(t, found[0])
	require.NotNil(t, found[2])
	require.ErrorIs(t, l.Lacks("no_such_function"), errors.ErrUnsupported)
	require.EqualError(t, l.Lacks("no_such_function"), "no_such_function: the installed libm.so.6 does not have it")
}

func TestLoadFails(t *testing.T) {
	l := &Library{Name: "libnosuch.so.1", Debian: "libnosuch1", Fedora: "-"}
	err := l.Load()
	require.ErrorContains(t, err, "cannot load libnosuch.so.1 (on Debian and Ubuntu install libnosuch1): libnosuch.so.1: cannot open")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.Equal(t, err, l.Load())
}
