// SPDX-License-Identifier: Apache-2.0

package cerr

import (
	"fmt"
	"strings"
	"syscall"
)

// BusyError reports a Close of an object that is still needed. It is
// syscall.EBUSY.
type BusyError struct {
	Object   string
	Children []string // names of the objects to close first
}

// busyShown limits the number of children in a BusyError's text.
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

// Busy reports that an object was not closed because of its children.
func Busy(object string, children []string) error { return public(&BusyError{object, children}) }
