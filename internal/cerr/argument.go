// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"fmt"
	"syscall"
)

// ArgumentError reports a call that was refused before C was called, because an
// argument is invalid.
type ArgumentError struct {
	Op     string // C function that would have been called; Go function if there is no such C function
	Object string // name of the object; may be empty
	Err    error  // error that says what is wrong
}

func (e *ArgumentError) Error() string {
	s := e.Op
	if e.Object != "" {
		s += " (" + e.Object + ")"
	}
	err := e.Err
	if err == nil { // nil only in an error that a program has made
		err = syscall.EINVAL
	}
	if s != "" {
		s += ": "
	}
	return s + err.Error()
}

// Unwrap returns Err. errors.Is finds syscall.EINVAL in it, unless a more
// specific reason is known.
func (e *ArgumentError) Unwrap() error { return e.Err }

// invalid is an error that describes an invalid argument.
type invalid struct {
	text  string
	cause error
}

func (e *invalid) Error() string { return e.text }

func (e *invalid) Unwrap() error { return e.cause }

// Invalid returns an error that describes an invalid argument. It matches
// syscall.EINVAL.
func Invalid(format string, args ...any) error { return InvalidAs(syscall.EINVAL, format, args...) }

// InvalidAs returns an error that describes an invalid argument. It matches
// cause, whose text is not part of its own text.
func InvalidAs(cause error, format string, args ...any) error {
	return &invalid{fmt.Sprintf(format, args...), cause}
}

// Argument returns the error for a call of op for object that was refused. err
// is the reason.
func Argument(op, object string, err error) error { return public(&ArgumentError{op, object, err}) }

// Refuse returns the error for a call of op for object that was refused. format
// and args describe the reason. The error matches syscall.EINVAL.
func Refuse(op, object, format string, args ...any) error {
	return Argument(op, object, Invalid(format, args...))
}

// ZeroByte returns the error for a call of op that was refused because the
// string for the parameter param contains a zero byte, at which C's string
// would end.
func ZeroByte(op, param string) error { return Refuse(op, "", "%s contains a zero byte", param) }

// Nil returns the error for a call of op that was refused because the parameter
// param is nil.
func Nil(op, param string) error { return Refuse(op, "", "%s is nil", param) }
