// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/dl"
)

// control is testdata/fake.c's.
type control struct {
	result            [2]int64
	errno             int64
	outIndex, outSize int64
	outValue          int64

	calls  int64
	args   [7]int64
	called [64]byte
}

// Library is one of the fake libraries.
type Library struct {
	name    string
	control *control
}

// Open returns a library of this process.
func Open(t testing.TB, name string) *Library {
	t.Helper()
	l := &Library{name: name}
	l.control = (*control)(l.symbol("control"))
	require.NotNil(t, l.control, "this process has another %s", name)
	return l
}

// symbol returns the address of a variable of the library, nil without it.
func (l *Library) symbol(name string) (address unsafe.Pointer) {
	library := dl.Library{Name: l.name, Symbols: []string{name}, Set: func(_ int, a unsafe.Pointer) { address = a }}
	if err := library.Load(); err != nil {
		return nil
	}
	return address
}

// Object returns an object of C's that the function of libibverbs can be called
// with. All that is in it is the function's operation, if it calls one.
func (l *Library) Object(function string) unsafe.Pointer {
	if object := (*unsafe.Pointer)(l.symbol("object_" + function)); object != nil {
		return *object
	}
	return l.symbol("nothing")
}

// Bare returns an object of libibverbs that has a context and no operations.
func (l *Library) Bare() unsafe.Pointer {
	return *(*unsafe.Pointer)(l.symbol("bare"))
}

// Returns sets what calls give, and what they leave in errno; both may be
// anything. An out parameter is not written.
func (l *Library) Returns(result int64, errno int32) {
	*l.control = control{result: [2]int64{result, result}, errno: int64(errno)}
}

// ThenReturns sets the result of all calls after the first.
func (l *Library) ThenReturns(result int64) { l.control.result[1] = result }

// Writes sets the value of the out parameter at an index from 0, which has
// size bytes.
func (l *Library) Writes(index, size int, value int64) {
	l.control.outIndex, l.control.outSize, l.control.outValue = int64(index), int64(size), value
}

// Called returns which function was called last, how often any was called, and
// the first arguments, of which only as many bits are valid as the parameter
// has.
func (l *Library) Called() (function string, times int, args [7]int64) {
	name, _, _ := bytes.Cut(l.control.called[:], []byte{0})
	return string(name), int(l.control.calls), l.control.args
}
