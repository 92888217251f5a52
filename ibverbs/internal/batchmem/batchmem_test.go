// SPDX-License-Identifier: Apache-2.0

package batchmem_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/batchmem"
)

func TestAlloc(t *testing.T) {
	for name, size := range map[string]struct{ requests, segments int }{
		"no requests": {0, 1}, "too many": {1<<20 + 1, 1}, "negative": {1, -1}, "too many segments": {1, 1<<10 + 1},
	} {
		_, _, err := batchmem.Alloc[libibverbs.RecvWr](t, size.requests, size.segments)
		require.ErrorIs(t, err, syscall.EINVAL, name)
	}
	requests, segments, err := batchmem.Alloc[libibverbs.RecvWr](t, 3, 0)
	require.NoError(t, err)
	require.Len(t, requests, 3)
	require.Empty(t, segments)
	requests, segments, err = batchmem.Alloc[libibverbs.RecvWr](t, 3, 2)
	require.NoError(t, err)
	require.Len(t, segments, 6)
	for i := range requests {
		requests[i].WrId = ^uint64(0)
	}
	require.Zero(t, segments[0], "the requests do not overlap the segments")
}

func TestPosition(t *testing.T) {
	requests := make([]libibverbs.SendWr, 3)
	for i := range requests {
		require.Equal(t, i, batchmem.Position(requests, &requests[i]))
	}
	require.Zero(t, batchmem.Position(requests, nil))
	require.Zero(t, batchmem.Position(requests[:2], &requests[2]), "not of this batch")
	require.Zero(t, batchmem.Position(requests[1:], &requests[0]), "not of this batch")
}
