// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Error is the error of a C call that failed. Calls of package rdmacm return it
// too. Its text says how to solve the problem, if that is known.
type Error struct {
	// Op is the C function that failed, such as "ibv_reg_mr".
	Op string
	// Object is the object that Op was called for. It may be empty.
	Object string
	// Errno says why the call failed. It is never 0.
	Errno syscall.Errno

	hint string
}

// Error returns the operation, the object, the errno's text and the hint.
func (e *Error) Error() string { return cerr.Text(e.Op, e.Object, e.Errno, e.hint) }

// Hint returns how to solve the problem, or "" if that is not known. It comes
// from checks at the time of the failure, such as of the limits of the device
// and of the process. If no check found the cause for certain, the hint names
// the command verbena doctor.
func (e *Error) Hint() string { return e.hint }

// Unwrap returns Errno, so that errors.Is and errors.As find it.
func (e *Error) Unwrap() error { return e.Errno }

// ArgumentError is the error of a call that was not passed to the C library
// because it could not succeed: a number is out of range, an object is missing
// or belongs to another device, or an earlier step is missing. Calls of package
// rdmacm return it too.
type ArgumentError struct {
	// Op is the C function, such as "ibv_create_qp", or the Go function if C
	// has none, such as "CQ.Wait". It is empty for an object that is nil or was
	// not created by the packages' functions.
	Op string
	// Object is the object that Op was called for. It may be empty.
	Object string
	// Err says what is wrong and what is allowed. It matches syscall.EINVAL,
	// unless a function's comment names another error.
	Err error
}

// Error returns the operation, the object, and what is wrong.
func (e *ArgumentError) Error() string { return (*cerr.ArgumentError)(e).Error() }

// Unwrap returns Err.
func (e *ArgumentError) Unwrap() error { return e.Err }

// LibraryError reports that a C library could not be loaded because it is not
// installed.
type LibraryError struct {
	// Library is the missing file, such as "libibverbs.so.1".
	Library string
	// Debian and Fedora are the packages that contain the library.
	Debian string
	Fedora string
	// Reason is the dynamic loader's message.
	Reason string
}

// Error returns the library, the packages to install, and the reason.
func (e *LibraryError) Error() string { return (*cerr.LibraryError)(e).Error() }

// Unwrap returns errors.ErrUnsupported.
func (e *LibraryError) Unwrap() error { return errors.ErrUnsupported }

// SymbolError reports that the installed C library is too old: it lacks a
// function.
type SymbolError struct {
	// Symbol is the C function.
	Symbol string
	// Library is the file that lacks it, such as "libibverbs.so.1".
	Library string
	// Release is the version of rdma-core that added the function, or empty if
	// that is not known.
	Release string
	// Node is the ELF version node of the function, such as "IBVERBS_1.15", or
	// empty if that is not known.
	Node string
}

// Error returns the function, the library and the version needed.
func (e *SymbolError) Error() string { return (*cerr.SymbolError)(e).Error() }

// Unwrap returns errors.ErrUnsupported.
func (e *SymbolError) Unwrap() error { return errors.ErrUnsupported }

// BusyError is the error of closing an object that other objects need. Nothing
// was closed.
type BusyError struct {
	// Object is the object that stays open.
	Object string
	// Children are the objects to close first.
	Children []string
}

// Error returns the object and the first of the objects to close before it.
func (e *BusyError) Error() string { return (*cerr.BusyError)(e).Error() }

// Unwrap returns syscall.EBUSY.
func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// init makes the internal packages return errors of this package's types.
func init() {
	cerr.Convert(func(err error) error {
		switch e := err.(type) {
		case *cerr.Error:
			return &Error{Op: e.Op, Object: e.Object, Errno: e.Errno, hint: e.Hint()}
		case *cerr.ArgumentError:
			return (*ArgumentError)(e)
		case *cerr.LibraryError:
			return (*LibraryError)(e)
		case *cerr.SymbolError:
			return (*SymbolError)(e)
		case *cerr.BusyError:
			return (*BusyError)(e)
		case *cerr.ReregError:
			return (*ReregError)(e)
		}
		return nil
	})
}

// wrap names the object in an error of a C call.
func wrap(object string, err error) error {
	switch e := err.(type) {
	case *Error:
		e.Object = object
	case *ReregError:
		e.Object = object
	}
	return err
}

// ErrNoDevice reports that this machine does not have the requested RDMA
// device, or has none at all.
var ErrNoDevice = errors.New("no such RDMA device")

// OpenObjects returns one line for each object of this module that is not
// closed. Tests use it to find leaks. With TraceObjects, the lines say where
// each object was opened.
func OpenObjects() []string { return object.Open() }

// TraceObjects sets whether objects opened from now on record where that
// happened, for OpenObjects. That costs a stack trace per object. The
// environment variable VERBENA_TRACE_OPEN turns it on at the start.
func TraceObjects(on bool) { object.Trace(on) }
