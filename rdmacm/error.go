package rdmacm

import (
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// Error is a failed call of the C library; it is ibverbs.Error.
type Error = ibverbs.Error

// AddrinfoError is a host or a service that could not be looked up.
type AddrinfoError = cerr.AddrinfoError
