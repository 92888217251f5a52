package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Error is a failed call of the C library; it is ibverbs.Error.
type Error = ibverbs.Error

// AddrInfoError is a host or a service that could not be looked up.
type AddrInfoError = cerr.AddrInfoError

// QPError says that the device has told of a queue pair that can do nothing any
// more, as many do when the peer asks for what it may not. It is syscall.EIO.
type QPError struct {
	Num   uint32            // of the queue pair
	Event ibverbs.EventType // what the device has told
}

func (e *QPError) Error() string { return fmt.Sprintf("queue pair %d has failed: %v", e.Num, e.Event) }

// Unwrap makes errors.Is work with syscall.EIO.
func (e *QPError) Unwrap() error { return syscall.EIO }
