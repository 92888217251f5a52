package ibverbs

import (
	"errors"

	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
)

// Error is a failed call of the C library. It has the C function in Op, what
// it was called for in Object, and the syscall.Errno in Errno, which errors.Is
// finds. Its text says what to do about the error where that is known.
type Error = cerr.Error

// LibraryError says that a C library is not installed, and which package
// brings it. It is errors.ErrUnsupported.
type LibraryError = cerr.LibraryError

// SymbolError says that the installed C library is too old for a function. It
// is errors.ErrUnsupported.
type SymbolError = cerr.SymbolError

// BusyError is what Close returns for an object that others still need. It
// lists them in Children; nothing was closed. errors.Is finds syscall.EBUSY.
type BusyError = object.BusyError

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
