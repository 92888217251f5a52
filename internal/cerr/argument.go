// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"fmt"
	"syscall"
)

// ArgumentError reports a call that was refused before C was called.
type ArgumentError struct {
	Op     string // the C function, or the Go function if there is none in C
	Object string // the object that it was called for; may be empty
	Err    error  // what is wrong
}

func (e *ArgumentError) Error() string {
	s := e.Op
	if e.Object != "" {
		s += " (" + e.Object + ")"
	}
	err := e.Err
	if err == nil { // in an error that a program has made
		err = syscall.EINVAL
	}
	if s != "" {
		s += ": "
	}
	return s + err.Error()
}

// Unwrap returns Err, which is syscall.EINVAL unless a more specific cause is
// known.
func (e *ArgumentError) Unwrap() error { return e.Err }

// invalid describes an invalid argument.
type invalid struct {
	text  string
	cause error
}

func (e *invalid) Error() string { return e.text }

func (e *invalid) Unwrap() error { return e.cause }

// Invalid returns an error that describes an invalid argument. It is
// syscall.EINVAL.
func Invalid(format string, args ...any) error { return InvalidAs(syscall.EINVAL, format, args...) }

// InvalidAs returns an error that describes an invalid argument. errors.Is
// finds cause, which the text does not repeat.
func InvalidAs(cause error, format string, args ...any) error {
	return &invalid{fmt.Sprintf(format, args...), cause}
}

// Argument reports that op was not called for object, because of err.
func Argument(op, object string, err error) error { return public(&ArgumentError{op, object, err}) }

// Refuse reports that op was not called for object, because of an error that
// Invalid makes from format and args.
func Refuse(op, object, format string, args ...any) error {
	return Argument(op, object, Invalid(format, args...))
}

// Nil reports a nil argument.
func Nil(op, param string) error { return Refuse(op, "", "%s is nil", param) }
