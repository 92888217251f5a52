// SPDX-License-Identifier: Apache-2.0

package bridge

import "github.com/verbena-go/verbena/generated/libibverbs"

// Tag holds the functions that package ibverbs provides to package tag.
var Tag struct {
	// NewBatch allocates memory outside Go's heap for a batch of operations
	// with at most the given number of segments each. The memory is freed with
	// the last reference to batch.
	NewBatch func(operations, segments int) (ops []libibverbs.OpsWr, batch any, err error)

	// Place makes segments, a *[]ibverbs.Segment that the device is to write to,
	// those of operation i of the batch, and returns them as C takes them.
	Place func(batch any, i int, segments any) ([]libibverbs.Sge, error)

	// Position returns which of the operations bad points at, or 0 if that is
	// none of them.
	Position func(ops []libibverbs.OpsWr, bad *libibverbs.OpsWr) int

	// SRQType returns the type of an *SRQ.
	SRQType func(srq any) libibverbs.SrqType
}
