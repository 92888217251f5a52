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

// control is the struct control in testdata/fake.c.
type control struct {
	result            [2]int64
	errno             int64
	outIndex, outSize int64
	outValue          int64

	calls  int64
	args   [9]int64
	called [64]byte
}

// Library is one of the libraries without a device.
type Library struct {
	name    string
	control *control
}

// Open returns the library with that name, which this process must have loaded.
func Open(t testing.TB, name string) *Library {
	t.Helper()
	l := &Library{name: name}
	l.control = (*control)(l.symbol("control"))
	require.NotNil(t, l.control, "this process has another %s", name)
	return l
}

// symbol returns the address of a variable of the library, or nil if the
// library does not have it.
func (l *Library) symbol(name string) (address unsafe.Pointer) {
	library := dl.Library{Name: l.name, Symbols: []string{name}, Set: func(_ int, a unsafe.Pointer) { address = a }}
	if err := library.Load(); err != nil {
		return nil
	}
	return address
}

// Object returns a C object, such as a struct ibv_qp, to pass to the function
// of libibverbs with this name. If the function calls an operation of a
// provider, the object's table has only this operation.
func (l *Library) Object(function string) unsafe.Pointer {
	if object := (*unsafe.Pointer)(l.symbol("object_" + function)); object != nil {
		return *object
	}
	return l.symbol("nothing")
}

// Bare returns an object of libibverbs that has a context, but no operations.
func (l *Library) Bare() unsafe.Pointer {
	return *(*unsafe.Pointer)(l.symbol("bare"))
}

// Returns sets the result of calls and the value of errno after them. These
// calls write no out parameter.
func (l *Library) Returns(result int64, errno int32) {
	*l.control = control{result: [2]int64{result, result}, errno: int64(errno)}
}

// ThenReturns sets the result of all calls after the next one.
func (l *Library) ThenReturns(result int64) { l.control.result[1] = result }

// Writes makes calls write value to the out parameter with that index, counted
// from 0, which has size bytes.
func (l *Library) Writes(index, size int, value int64) {
	l.control.outIndex, l.control.outSize, l.control.outValue = int64(index), int64(size), value
}

// Called returns the name of the function that was called last, the number of
// calls of all functions, and the first arguments of the last call. Only the
// bits that the type of a parameter has are valid.
func (l *Library) Called() (function string, times int, args [9]int64) {
	name, _, _ := bytes.Cut(l.control.called[:], []byte{0})
	return string(name), int(l.control.calls), l.control.args
}
