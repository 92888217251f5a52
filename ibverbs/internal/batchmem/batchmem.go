// SPDX-License-Identifier: Apache-2.0

// Package batchmem allocates the memory of batches: requests and their
// segments, outside Go's heap, where C reads them directly.
package batchmem

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/mem"
)

// The limits of a batch.
const (
	maxRequests = 1 << 20
	maxSegments = 1 << 10
)

// Alloc allocates memory for the given number of requests, and for segments
// segments of each. The segments of request i start at index i*segments. The
// garbage collector frees the memory together with owner, so code that uses the
// memory must keep owner alive.
func Alloc[Request, Owner any](owner *Owner, requests, segments int) ([]Request, []libibverbs.Sge, error) {
	if requests < 1 || segments < 0 || requests > maxRequests || segments > maxSegments {
		return nil, nil, cerr.Refuse("make a batch", "", "the number of requests is %d and of segments %d, not from 1 to %d and from 0 to %d",
			requests, segments, maxRequests, maxSegments)
	}
	var request Request
	bytes := int(unsafe.Sizeof(request)) * requests
	memory, err := mem.Alloc(bytes + int(unsafe.Sizeof(libibverbs.Sge{}))*requests*segments)
	if err != nil {
		return nil, nil, fmt.Errorf("allocate a batch of %d requests with %d segments each: %w", requests, segments, err)
	}
	// The order in which memory is freed does not matter, so the collector
	// can free it.
	runtime.AddCleanup(owner, func(m []byte) { _ = mem.Free(m) }, memory)
	all := unsafe.Slice((*Request)(unsafe.Pointer(&memory[0])), requests)
	if segments == 0 {
		return all, nil, nil
	}
	return all, unsafe.Slice((*libibverbs.Sge)(unsafe.Pointer(&memory[bytes])), requests*segments), nil
}

// Position returns the index of bad, the request that C could not post, or 0 if
// C does not say which request that is.
func Position[Request any](requests []Request, bad *Request) int {
	offset := uintptr(unsafe.Pointer(bad)) - uintptr(unsafe.Pointer(&requests[0]))
	if i := offset / unsafe.Sizeof(requests[0]); bad != nil && i < uintptr(len(requests)) {
		return int(i)
	}
	return 0
}
