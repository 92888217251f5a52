// SPDX-License-Identifier: Apache-2.0

// Package cerr converts the ways in which a C library reports errors into Go
// errors.
package cerr

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// Error reports a C call that failed.
type Error struct {
	Op    string        // C function
	Errno syscall.Errno // never 0
}

func (e *Error) Error() string { return e.Op + ": " + e.Errno.Error() }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Missing is the errno that a stub returns if the library does not have the
// function.
const Missing = -1 << 31

// Status decodes the result of a function that returns 0, or -1 with errno, or
// -errno.
func Status(op string, result int64, errno int32) error {
	if result == 0 {
		return nil // whatever errno says
	}
	return &Error{op, number(result, errno)}
}

// Code decodes the result of a function that returns 0 or an errno.
func Code(op string, result int64, errno int32) error { return Status(op, result, errno) }

// Count decodes the result of a function that returns a number that is not
// negative, or -1 with errno, or -errno.
func Count(op string, result int64, errno int32) error {
	if result >= 0 {
		return nil
	}
	return Status(op, result, errno)
}

// Null decodes the errno of a function that returned NULL.
func Null(op string, errno int32) error { return &Error{op, number(-1, errno)} }

// number returns the errno for the result of a failed call, which is not 0, and
// the value of errno after it.
func number(result int64, errno int32) syscall.Errno {
	switch {
	case result > 0:
		return syscall.Errno(result)
	case result < -1:
		return syscall.Errno(-result)
	case errno <= 0:
		return syscall.EIO // -1 without an errno
	}
	return syscall.Errno(errno)
}

// ArgumentError reports a call that was refused before C was called. It matches
// syscall.EINVAL.
type ArgumentError struct {
	Op     string // C function
	Param  string // parameter whose argument is invalid
	Reason string // what is wrong with it, such as "is nil"
}

func (e *ArgumentError) Error() string { return e.Op + ": " + e.Param + " " + e.Reason }

// Unwrap returns syscall.EINVAL.
func (e *ArgumentError) Unwrap() error { return syscall.EINVAL }

// Nil returns the error that the call of op was refused because the parameter
// param is nil.
func Nil(op, param string) error { return &ArgumentError{op, param, "is nil"} }

// ZeroByte returns the error that the call of op was refused because the string
// for the parameter param contains a zero byte, at which C's string would end.
func ZeroByte(op, param string) error { return &ArgumentError{op, param, "contains a zero byte"} }

// SymbolError reports that the installed library does not have a function.
type SymbolError struct{ Symbol, Library string }

func (e *SymbolError) Error() string {
	return e.Symbol + ": the installed " + e.Library + " does not have it"
}

// Unwrap returns errors.ErrUnsupported.
func (e *SymbolError) Unwrap() error { return errors.ErrUnsupported }

// LibraryError reports that a C library could not be loaded.
type LibraryError struct {
	Library string
	Debian  string // names of the packages that contain the library; - if they are not known
	Fedora  string
	Reason  string // error text of the dynamic loader
}

func (e *LibraryError) Error() string {
	var hints []string
	for _, hint := range []struct{ system, packages string }{{"Debian and Ubuntu", e.Debian}, {"Fedora", e.Fedora}} {
		if hint.packages != "-" && hint.packages != "" {
			hints = append(hints, "on "+hint.system+" install "+hint.packages)
		}
	}
	s := "cannot load " + e.Library
	if len(hints) > 0 {
		s += " (" + strings.Join(hints, ", ") + ")"
	}
	return s + ": " + e.Reason
}

// Unwrap returns errors.ErrUnsupported.
func (e *LibraryError) Unwrap() error { return errors.ErrUnsupported }

// StaticError reports that a statically linked program uses a C library. The
// library would load its own libc, whose errno the program cannot read.
type StaticError struct{ Library string }

func (e *StaticError) Error() string {
	return "cannot use " + e.Library + " in a program that is linked statically: link it dynamically, without -static"
}

// Unwrap returns errors.ErrUnsupported.
func (e *StaticError) Unwrap() error { return errors.ErrUnsupported }

// PlatformError reports a call in a program that cannot call C libraries,
// because of its platform or because of how it was built.
type PlatformError struct{ Op string }

func (e *PlatformError) Error() string { return e.Op + ": " + whyNot(runtime.GOOS, runtime.GOARCH) }

// Unwrap returns errors.ErrUnsupported.
func (e *PlatformError) Unwrap() error { return errors.ErrUnsupported }

// Platform returns the error that this program cannot call op.
func Platform(op string) error { return &PlatformError{op} }

// callable lists the architectures on which programs can call C libraries.
var callable = []string{"amd64", "arm64", "loong64", "ppc64le", "riscv64", "s390x"}

// whyNot returns the reason why a program for a platform cannot call C
// libraries.
func whyNot(goos, goarch string) string {
	if goos == "linux" && slices.Contains(callable, goarch) {
		// Without a C compiler, Go silently disables cgo.
		return "this program was built without cgo: build it again with CGO_ENABLED=1 where there is a C compiler, such as gcc"
	}
	return fmt.Sprintf("the bindings need Linux on one of %s; this program was built for %s/%s", strings.Join(callable, ", "), goos, goarch)
}
