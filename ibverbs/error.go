package ibverbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Error is a failed call of the C library. Calls of package rdmacm return it,
// too. Its text says what to do about the error where that is known.
type Error struct {
	// Op is the C function that has failed, such as "ibv_reg_mr".
	Op string
	// Object is what Op was called for. It may be empty.
	Object string
	// Errno says why the call has failed. It is never 0.
	Errno syscall.Errno
}

// Error returns the operation, the object, the errno's text, and what to do.
func (e *Error) Error() string { return (*cerr.Error)(e).Error() }

// Hint returns what to do about the error, or nothing if that is not known.
func (e *Error) Hint() string { return (*cerr.Error)(e).Hint() }

// Unwrap returns Errno, so that errors.Is and errors.As find it.
func (e *Error) Unwrap() error { return e.Errno }

// ArgumentError is a call that was refused before the C library was called,
// because it could not succeed: a number is out of range, an object is missing
// or belongs to another device, or a step before it is missing. Calls of package
// rdmacm return it, too.
type ArgumentError struct {
	// Op is the C function, or the Go function where C has none, such as
	// "ibv_create_qp" or "CQ.Wait". It is empty for an object that is nil, or
	// that the packages' functions have not made.
	Op string
	// Object is what Op was called for. It may be empty.
	Object string
	// Err says what is wrong, and what is allowed. errors.Is finds
	// syscall.EINVAL in it, unless a function's comment names another error.
	Err error
}

// Error returns the operation, the object, and what is wrong.
func (e *ArgumentError) Error() string { return (*cerr.ArgumentError)(e).Error() }

// Unwrap returns Err.
func (e *ArgumentError) Unwrap() error { return e.Err }

// LibraryError is a C library that could not be loaded, because it is not
// installed.
type LibraryError struct {
	// Library is the file that was looked for, such as "libibverbs.so.1".
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

// SymbolError is a function that the installed C library does not have, because
// the library is too old.
type SymbolError struct {
	// Symbol is the C function.
	Symbol string
	// Library is the file that lacks it, such as "libibverbs.so.1".
	Library string
	// Release is the version of rdma-core that added the function. It is empty
	// if that is not known.
	Release string
	// Node is the ELF version node of the function, such as "IBVERBS_1.15". It is
	// empty if that is not known.
	Node string
}

// Error returns the function, the library, and the version that is needed.
func (e *SymbolError) Error() string { return (*cerr.SymbolError)(e).Error() }

// Unwrap returns errors.ErrUnsupported.
func (e *SymbolError) Unwrap() error { return errors.ErrUnsupported }

// BusyError is a Close of an object that others still need. Nothing was closed.
type BusyError struct {
	// Object is the object that stays open.
	Object string
	// Children are the objects to close first.
	Children []string
}

// Error returns the object, and the first of those to close before it.
func (e *BusyError) Error() string { return (*cerr.BusyError)(e).Error() }

// Unwrap returns syscall.EBUSY.
func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// init has every error of the packages below made of the types here.
func init() {
	cerr.Convert(func(err error) error {
		switch e := err.(type) {
		case *cerr.Error:
			return (*Error)(e)
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

// ErrNoDevice says that this machine has no RDMA device of the name asked for,
// or none at all.
var ErrNoDevice = errors.New("no such RDMA device")

// OpenObjects describes every object of this module that is not closed, one
// line each. Tests use it to find leaks; TraceObjects adds where each was
// opened.
func OpenObjects() []string { return object.Open() }

// TraceObjects makes objects that are opened from now on remember where that
// was. It costs a stack trace for each. The environment variable
// VERBENA_TRACE_OPEN turns it on from the start.
func TraceObjects(on bool) { object.Trace(on) }
