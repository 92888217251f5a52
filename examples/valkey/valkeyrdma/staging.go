// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"context"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// half is the size of half of the staging memory, and the largest write.
const half = 128 << 10

// staging is memory from which the device sends. The bytes of the program are
// copied there, so that Write need not wait for the device. One half is filled
// while the device sends the other. Write uses it, in one goroutine at a time.
type staging struct {
	mr    *ibverbs.MR
	index int                // the half that is filled
	used  int                // bytes in it
	last  [2]rdmacm.Transfer // the write that has filled each half, and is done after all writes before
	sent  [2]bool            // whether that was posted
}

// room returns how many bytes can be added, at least one. It waits until the
// device has sent the half.
func (s *staging) room(ctx context.Context) (int, error) {
	if s.used == half {
		if next := 1 - s.index; s.sent[next] {
			if err := s.last[next].Wait(ctx); err != nil {
				return 0, err
			}
		}
		s.index, s.used = 1-s.index, 0
	}
	return half - s.used, nil
}

// add copies bytes, at most as many as there is room for. It returns the memory
// to write from, and with which transfer.
func (s *staging) add(p []byte) (ibverbs.Segment, *rdmacm.Transfer) {
	from := s.mr.Sub(s.index*half+s.used, len(p))
	copy(from.Bytes(), p)
	s.used += len(p)
	if s.used < half {
		return from, nil
	}
	s.sent[s.index] = true
	return from, &s.last[s.index]
}
