package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// AddrInfoError is a host or a service that could not be looked up.
type AddrInfoError struct {
	// Op is the C function that has failed, such as "rdma_getaddrinfo".
	Op string
	// Code is the EAI code of getaddrinfo(3), such as -2 for EAI_NONAME.
	Code int
	// Text says what the code means.
	Text string
}

// Error returns the operation and what the code means.
func (e *AddrInfoError) Error() string { return (*cerr.AddrInfoError)(e).Error() }

// Unwrap returns the syscall.Errno that says the same as the code, or nil if
// there is none.
func (e *AddrInfoError) Unwrap() error { return (*cerr.AddrInfoError)(e).Unwrap() }

// init has every error of the packages below made of the type here.
func init() {
	cerr.Convert(func(err error) error {
		if e, ok := err.(*cerr.AddrInfoError); ok {
			return (*AddrInfoError)(e)
		}
		return nil
	})
}

// wrap names the object in an error of a C call.
func wrap(object string, err error) error {
	if e, ok := err.(*ibverbs.Error); ok {
		e.Object = object
	}
	return err
}

// unnamed returns where an error is to name its object, nil if it does already or
// has no place for that.
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

// QPError says that the device has told of a queue pair that can do nothing any
// more, as many do when the peer asks for what it may not. It is syscall.EIO.
type QPError struct {
	Num   uint32            // of the queue pair
	Event ibverbs.EventType // what the device has told
}

func (e *QPError) Error() string { return fmt.Sprintf("queue pair %d has failed: %v", e.Num, e.Event) }

// Unwrap makes errors.Is work with syscall.EIO.
func (e *QPError) Unwrap() error { return syscall.EIO }
