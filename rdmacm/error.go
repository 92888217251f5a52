// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// An AddrInfoError reports a host or a service that could not be looked up.
type AddrInfoError struct {
	// Op is the C function that failed, such as "rdma_getaddrinfo".
	Op string
	// Code is the EAI code of getaddrinfo(3), such as -2 for EAI_NONAME.
	Code int
	// Text describes the code.
	Text string
}

// Error returns the operation and the description of the code.
func (e *AddrInfoError) Error() string { return (*cerr.AddrInfoError)(e).Error() }

// Unwrap returns the syscall.Errno equivalent to the code, or nil if there is
// none.
func (e *AddrInfoError) Unwrap() error { return (*cerr.AddrInfoError)(e).Unwrap() }

// init makes the lower packages return their lookup errors as *AddrInfoError.
func init() {
	cerr.Convert(func(err error) error {
		if e, ok := err.(*cerr.AddrInfoError); ok {
			return (*AddrInfoError)(e)
		}
		return nil
	})
}

// wrap sets the object in the error of a C call.
func wrap(object string, err error) error {
	if e, ok := err.(*ibverbs.Error); ok {
		e.Object = object
	}
	return err
}

// unnamed returns a pointer to an error's empty object name. It returns nil if
// the name is set or the error has none.
func unnamed(err error) *string {
	var object *string
	switch e := err.(type) {
	case *ibverbs.Error:
		object = &e.Object
	case *ibverbs.ArgumentError:
		object = &e.Object
	}
	if object == nil || *object != "" {
		return nil
	}
	return object
}

// A QPError reports that a queue pair failed. Many devices put a queue pair out
// of operation when the peer attempts a forbidden access. A QPError matches
// syscall.EIO.
type QPError struct {
	Num   uint32            // number of the queue pair
	Event ibverbs.EventType // event that the device reported
}

// Error names the queue pair and the event.
func (e *QPError) Error() string { return fmt.Sprintf("queue pair %d has failed: %v", e.Num, e.Event) }

// Unwrap returns syscall.EIO.
func (e *QPError) Unwrap() error { return syscall.EIO }
