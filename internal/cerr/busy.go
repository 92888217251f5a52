// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"fmt"
	"strings"
	"syscall"
)

// BusyError reports that an object was not closed, since other objects need it.
// It matches syscall.EBUSY.
type BusyError struct {
	Object   string
	Children []string // names of the objects that must be closed first
}

// busyShown limits the number of children that a BusyError's text names.
const busyShown = 8

func (e *BusyError) Error() string {
	names, more := e.Children, ""
	if len(names) > busyShown {
		names, more = names[:busyShown], fmt.Sprintf(", and %d more", len(names)-busyShown)
	}
	return fmt.Sprintf("%s: close first: %s%s", e.Object, strings.Join(names, ", "), more)
}

// Unwrap returns syscall.EBUSY.
func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// Busy returns the error for an object that was not closed because of its
// children.
func Busy(object string, children []string) error { return public(&BusyError{object, children}) }
