// SPDX-License-Identifier: Apache-2.0

// Package cerr converts the errors of librdmacm and libibverbs, which report
// them in several ways, into Go errors. No other package does.
//
// Packages ibverbs and rdmacm declare types with the same fields as the error
// types here. Programs use those types, to which errors are converted; see
// Convert.
package cerr

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Error reports a C call that failed.
type Error struct {
	Op     string        // C function
	Object string        // name of the object; may be empty
	Errno  syscall.Errno // never 0
	hint   string
}

// failed returns the error of a failed C call, with a hint about the cause if
// the state of the machine shows one.
func failed(op string, errno syscall.Errno) error {
	return public(&Error{Op: op, Errno: errno, hint: hint(op, errno)})
}

func (e *Error) Error() string { return Text(e.Op, e.Object, e.Errno, e.hint) }

// Text returns the text of an error of a C call. object and hint may be empty.
func Text(op, object string, errno syscall.Errno, hint string) string {
	s := op
	if object != "" {
		s += " (" + object + ")"
	}
	s += ": " + errno.Error()
	if hint != "" {
		s += ": " + hint
	}
	return s
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Missing is the errno that a stub returns if the library does not have the
// function.
const Missing = -1 << 31

// Status decodes the result of a function that returns 0, or -1 with errno, or
// in older libraries -errno.
func Status(op string, result int64, errno int32) error {
	if result == 0 {
		return nil // C's errno may be left from an earlier call
	}
	return failed(op, normalise(result, errno))
}

// Code decodes the result of a function that returns 0 or an errno. Some
// providers return -errno, or -1 with errno.
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
func Null(op string, errno int32) error {
	return failed(op, normalise(-1, errno))
}

// Poll decodes the result of ibv_poll_cq for at most limit completions. A
// provider may return any negative number for a failure. If the result is more
// than limit, it is EOPNOTSUPP, which the library returns if the provider lacks
// the operation.
func Poll(op string, result int64, limit int, errno int32) error {
	switch {
	case result > int64(max(limit, 0)):
		return failed(op, syscall.Errno(result))
	case result >= 0:
		return nil
	case result > -3: // -1 and -2 are not errnos here
		return failed(op, normalise(-1, errno))
	}
	return failed(op, normalise(result, errno))
}

// Wait decodes the result of repoll_wait for at most limit events. A result
// above limit is an errno. As EINVAL is 22, Wait cannot tell a result of EINVAL
// from 22 events if limit is 22 or more. It takes such a result for events.
func Wait(op string, result int64, limit int, errno int32) error {
	if result > int64(max(limit, 0)) {
		return failed(op, syscall.Errno(result))
	}
	return Count(op, result, errno)
}

// kernelNotSupported is the kernel's internal ENOTSUPP, which some calls return
// to programs. No constant of libc has this value.
const kernelNotSupported = 524

// normalise returns the errno of a failed call. result is the call's result,
// which is not 0, and errno is the value of C's errno after the call. The
// kernel's ENOTSUPP becomes EOPNOTSUPP.
func normalise(result int64, errno int32) syscall.Errno {
	if e := number(result, errno); e != kernelNotSupported {
		return e
	}
	return syscall.EOPNOTSUPP
}

// number does the work of normalise, without the conversion of ENOTSUPP.
func number(result int64, errno int32) syscall.Errno {
	switch {
	case result > 0:
		return syscall.Errno(result)
	case result < -1:
		return syscall.Errno(-result)
	case errno == 0, errno == -1:
		return syscall.EIO // -1 without errno, or with errno -1
	case errno < 0:
		return syscall.Errno(-errno)
	}
	return syscall.Errno(errno)
}

// ReregError reports that ibv_rereg_mr failed, and at which step it did.
type ReregError struct {
	Object string // name of the memory region; may be empty
	Code   int    // IBV_REREG_MR_ERR_*
	Errno  syscall.Errno
}

// Unusable reports whether the memory region is now unusable, so that it can
// only be deregistered. If the device lacks the operation, the region is
// unchanged although the library returns the same code.
func (e *ReregError) Unusable() bool { return e.Code <= -4 && !e.Errno.Is(errors.ErrUnsupported) }

func (e *ReregError) Error() string {
	op, step := "ibv_rereg_mr", "code "+strconv.Itoa(e.Code)
	if e.Object != "" {
		op += " (" + e.Object + ")"
	}
	if e.Code <= -1 && e.Code >= -5 {
		step = [...]string{
			"bad input", "fork protection of the new memory", "fork protection of the old memory",
			"command", "command and fork protection",
		}[-e.Code-1]
		if e.Unusable() {
			step += ", the region is unusable"
		}
	}
	return fmt.Sprintf("%s: %v (%s)", op, e.Errno, step)
}

// Unwrap returns the errno.
func (e *ReregError) Unwrap() error { return e.Errno }

// Rereg decodes the result of ibv_rereg_mr.
func Rereg(result int64, errno int32) error {
	if result == 0 {
		return nil
	}
	if errno == 0 && result == -1 {
		errno = int32(syscall.EINVAL)
	}
	return public(&ReregError{Code: int(result), Errno: normalise(-1, errno)})
}

// AddrInfoError reports that rdma_getaddrinfo could not resolve a name.
type AddrInfoError struct {
	Op   string
	Code int // EAI_*
	Text string
}

func (e *AddrInfoError) Error() string { return e.Op + ": " + e.Text }

// Unwrap returns the errno that corresponds to Code, or nil if there is none.
func (e *AddrInfoError) Unwrap() error {
	if errno := eai[e.Code].errno; errno != 0 {
		return errno
	}
	return nil
}

const (
	eaiBadFlags = -1
	eaiSystem   = -11
)

// socktNoSupport is Linux's ESOCKTNOSUPPORT. Package syscall does not define it
// on all systems.
const socktNoSupport = syscall.Errno(94)

var eai = map[int]struct {
	text  string
	errno syscall.Errno
}{
	eaiBadFlags: {"bad flags", syscall.EINVAL},
	-2:          {"unknown host or service", syscall.ENOENT},
	-3:          {"temporary failure in name resolution", syscall.EAGAIN},
	-4:          {"permanent failure in name resolution", 0},
	-6:          {"address family not supported", syscall.EAFNOSUPPORT},
	-7:          {"socket type not supported", socktNoSupport},
	-8:          {"service not supported for the socket type", 0},
	-10:         {"out of memory", syscall.ENOMEM},
}

// Addrinfo decodes the result of a function that returns 0, an EAI code, or -1
// with errno. A result of -1 stands for EAI_BADFLAGS, which has the same value,
// if errno is 0. With EAI_SYSTEM, the error has errno, too.
func Addrinfo(op string, result int64, errno int32) error {
	switch {
	case result == 0:
		return nil
	case result == eaiSystem, result == eaiBadFlags && errno != 0, result > 0:
		return Status(op, -1, errno)
	}
	text := eai[int(result)].text
	if text == "" {
		text = "name resolution failed with code " + strconv.FormatInt(result, 10)
	}
	return public(&AddrInfoError{op, int(result), text})
}

// SymbolError reports that the installed library is too old to have a function.
type SymbolError struct {
	Symbol  string
	Library string
	Release string // release of rdma-core that added the symbol; may be empty
	Node    string // ELF version node of the symbol in the library; may be empty
}

func (e *SymbolError) Error() string {
	s := e.Symbol + ": the installed " + e.Library + " does not have it"
	if e.Release != "" {
		s += "; rdma-core " + e.Release + " added it"
	}
	if e.Node != "" {
		s += " (" + e.Node + ")"
	}
	return s
}

// Unwrap returns errors.ErrUnsupported.
func (e *SymbolError) Unwrap() error { return errors.ErrUnsupported }

// Lacks returns the error for a function that the installed library does not
// have.
func Lacks(e SymbolError) error { return public(&e) }

// NotLoaded returns the error for a C library that could not be loaded.
func NotLoaded(e LibraryError) error { return public(&e) }

// LibraryError reports that a C library could not be loaded.
type LibraryError struct {
	Library string
	Debian  string // names of the packages that contain the library
	Fedora  string
	Reason  string // error text of the dynamic loader
}

func (e *LibraryError) Error() string {
	if slices.Contains(apart, e.Library) {
		return fmt.Sprintf("cannot load %s (on Debian and Ubuntu install %s, on Fedora %s): %s", e.Library, e.Debian, e.Fedora, e.Reason)
	}
	return fmt.Sprintf("cannot load %s (on Debian and Ubuntu install %s, on Fedora %s, or use package softroce, which needs no library): %s%s",
		e.Library, e.Debian, e.Fedora, e.Reason, Doctor)
}

// apart lists the libraries for which the error text mentions neither package
// softroce nor verbena doctor. They have nothing to do with verbs: softroce
// lacks their functions, and verbena doctor does not check them.
var apart = []string{"libibumad.so.3", "libibmad.so.5"}

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

// Static returns the error for a library that a statically linked program
// cannot use.
func Static(library string) error { return &StaticError{library} }

// PlatformError reports a call in a program that cannot call the C libraries,
// because of its platform or because of how it was built.
type PlatformError struct{ Op string }

func (e *PlatformError) Error() string {
	return e.Op + ": " + whyNot(runtime.GOOS, runtime.GOARCH)
}

// whyNot returns the reason why a program for a platform cannot call the C
// libraries.
func whyNot(goos, goarch string) string {
	switch {
	case goos == "linux" && slices.Contains(callable, goarch):
		// Without a C compiler, Go silently disables cgo.
		return "this program was built without cgo: build it again with CGO_ENABLED=1 where there is a C compiler, such as gcc"
	default:
		return fmt.Sprintf("RDMA needs Linux on one of %s; this program was built for %s/%s", strings.Join(callable, ", "), goos, goarch)
	}
}

// callable lists the architectures on which programs can call the C libraries.
var callable = []string{"amd64", "arm64", "loong64", "ppc64le", "riscv64", "s390x"}

// Unwrap returns errors.ErrUnsupported.
func (e *PlatformError) Unwrap() error { return errors.ErrUnsupported }

// Platform returns the error for a call of op in a program that cannot call the
// C libraries.
func Platform(op string) error { return &PlatformError{op} }
