package cerr

import (
	"fmt"
	"strings"
	"syscall"
)

// BusyError is a Close of something that is still needed. It is syscall.EBUSY.
type BusyError struct {
	Object   string
	Children []string // what must be closed first
}

// busyShown is how many children a BusyError's text names.
const busyShown = 8

func (e *BusyError) Error() string {
	names, more := e.Children, ""
	if len(names) > busyShown {
		names, more = names[:busyShown], fmt.Sprintf(", and %d more", len(names)-busyShown)
	}
	return fmt.Sprintf("%s: close first: %s%s", e.Object, strings.Join(names, ", "), more)
}

// Unwrap makes errors.Is work with syscall.EBUSY.
func (e *BusyError) Unwrap() error { return syscall.EBUSY }

// Busy reports that an object is not closed, because of its children.
func Busy(object string, children []string) error { return public(&BusyError{object, children}) }
