package rdmacm

import "github.com/verbena-go/verbena/ibverbs"

// Error is a failed call of the C library; it is ibverbs.Error.
type Error = ibverbs.Error
