// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakelib

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// stub is the generated Go function for a C function.
type stub struct {
	function string
	class    string // class in headers/conventions.txt
	golang   any
}

// outcome is the result of a C function, and errno after the call.
type outcome struct {
	result int64
	errno  syscall.Errno
}

// failures has, for each class of functions, how C reports EINVAL. Functions of
// other classes cannot fail.
var failures = map[string]outcome{
	"status":   {-1, syscall.EINVAL},
	"count":    {-1, syscall.EINVAL},
	"pointer":  {0, syscall.EINVAL},
	"list":     {0, syscall.EINVAL},
	"code":     {int64(syscall.EINVAL), 0},
	"negative": {-int64(syscall.EINVAL), 0},
	"minus":    {-int64(syscall.EINVAL), 0},
	"poll":     {-int64(syscall.EINVAL), 0},
	"wait":     {int64(syscall.EINVAL), 0},
	"rereg":    {-4, syscall.EINVAL},
	"eai":      {-11, syscall.EINVAL}, // EAI_SYSTEM
}

// Stubs tests each function of a library that all passes to check. The Go
// function must call the C function once, with the arguments in order, and must
// decode the result as the function's class says. It must refuse a string with
// a zero byte, at which C's string would end.
func Stubs(t *testing.T, library string, all func(check func(function, class string, stub any))) {
	if os.Getenv(inChild) == "" {
		name, _, _ := strings.Cut(library, ".")
		require.Zero(t, again([]string{"-test.run=^" + t.Name() + "$"}, func(dir string) error {
			if parts[name] != "" {
				return buildPart(dir, name)
			}
			return build(dir, nil)
		}))
		return
	}
	l := Open(t, library)
	all(func(function, class string, golang any) {
		s := stub{function, class, golang}
		t.Run(function, func(t *testing.T) { s.test(t, l) })
	})
}

func (s stub) test(t *testing.T, l *Library) {
	result, want := s.success(l)
	l.Returns(result, int32(syscall.ENOSPC)) // C's errno after a successful call may be anything
	args := s.args(l)
	got, err := s.call(args)
	require.NoError(t, err)
	require.Equal(t, want, got)
	s.requireCalled(t, l, args)

	if s.class == "list" {
		l.Returns(0, 0)
		got, err := s.call(args)
		require.NoError(t, err)
		require.Zero(t, got)
	}
	if failure, ok := failures[s.class]; ok {
		l.Returns(failure.result, int32(failure.errno))
		_, err := s.call(args)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, s.function+": ")
	}
	for i := range args {
		if args[i].Kind() == reflect.String {
			s.refusesZero(t, l, args, i)
		}
	}
}

// refusesZero calls the Go function with a string argument that contains a zero
// byte.
func (s stub) refusesZero(t *testing.T, l *Library, args []reflect.Value, i int) {
	t.Helper()
	l.Returns(0, 0)
	for _, text := range []string{"\x00", "\x00name", "na\x00me", "name\x00"} {
		args := slices.Clone(args)
		args[i] = reflect.ValueOf(text)
		got, err := s.call(args)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.Regexp(t, "^"+s.function+": [a-z_]+ contains a zero byte$", err.Error())
		require.Zero(t, got)
		_, times, _ := l.Called()
		require.Zero(t, times, "C was called")
	}
}

// success returns a result of the C function that is not a failure, and the
// value that the Go function must return for it.
func (s stub) success(l *Library) (result int64, value any) {
	object := int64(uintptr(l.Object(s.function)))
	switch s.class {
	case "count", "negative", "poll", "wait", "value":
		return 1, int64(1)
	case "pointer", "list", "interior":
		return object, object
	case "string":
		return int64(uintptr(unsafe.Pointer(&l.control.called))), s.function
	}
	return 0, nil
}

// args returns an argument for each parameter: different numbers, and the
// address of the function's object for pointers.
func (s stub) args(l *Library) []reflect.Value {
	var args []reflect.Value
	f := reflect.TypeOf(s.golang)
	for i := range f.NumIn() {
		arg := reflect.New(f.In(i)).Elem()
		switch {
		case arg.Kind() == reflect.Pointer:
			arg.Set(reflect.NewAt(f.In(i).Elem(), l.Object(s.function)))
		case arg.Kind() == reflect.UnsafePointer:
			arg.SetPointer(l.Object(s.function))
		case arg.Kind() == reflect.String:
			arg.SetString("name")
		case arg.Kind() == reflect.Bool:
			arg.SetBool(true)
		case arg.CanInt():
			arg.SetInt(int64(i + 1))
		default:
			arg.SetUint(uint64(i + 1))
		}
		args = append(args, arg)
	}
	return args
}

// call calls the Go function. It returns the function's first result and its
// error. The first result is nil for classes whose functions return no value.
// call ignores the results for out parameters.
func (s stub) call(args []reflect.Value) (any, error) {
	results := reflect.ValueOf(s.golang).Call(args)
	err, _ := results[len(results)-1].Interface().(error)
	switch value := results[0]; {
	case slices.Contains([]string{"status", "code", "minus", "eai", "rereg", "void"}, s.class):
		return nil, err
	case value.Kind() == reflect.String:
		return value.String(), err
	default:
		return number(value), err
	}
}

// number returns the number that C sees for a value.
func number(v reflect.Value) int64 {
	switch {
	case v.Kind() == reflect.Pointer, v.Kind() == reflect.UnsafePointer:
		return int64(v.Pointer())
	case v.CanInt():
		return v.Int()
	case v.Kind() == reflect.Bool && v.Bool():
		return 1
	case v.Kind() == reflect.Bool:
		return 0
	}
	return int64(v.Uint())
}

// requireCalled requires that C got the arguments, in order. C also gets out
// parameters between them, and copies of strings, which are not compared.
func (s stub) requireCalled(t *testing.T, l *Library, args []reflect.Value) {
	t.Helper()
	function, times, seen := l.Called()
	require.Equal(t, s.function, function)
	require.Equal(t, 1, times)
	rest := seen[:]
	for i, arg := range args {
		if arg.Kind() == reflect.String {
			continue
		}
		mask := int64(-1)
		if arg.Kind() != reflect.Pointer && arg.Kind() != reflect.UnsafePointer {
			mask = 0xff // the other bits of a register are not defined in C
		}
		at := slices.IndexFunc(rest, func(c int64) bool { return c&mask == number(arg)&mask })
		require.GreaterOrEqual(t, at, 0, "argument %d is not among %#x", i, rest)
		rest = rest[at+1:]
	}
}
