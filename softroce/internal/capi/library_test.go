// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// A thread helps when it has polled a queue in vain many times since the queue
// was armed.
func TestHelp(t *testing.T) {
	r := newRig(t)
	cq := r.cq(4)
	wc := alloc[libibverbs.Wc]()
	defer free(wc)
	poll := func(times int) {
		for range times {
			n, err := libibverbs.PollCq(cq, 1, wc)
			require.NoError(t, err)
			require.Zero(t, n)
		}
	}
	isEmpty := func() bool { return foundEmpty(unsafe.Pointer(cq)) }
	poll(helpAfter - 1)
	require.False(t, isEmpty())
	poll(1)
	require.True(t, isEmpty())
	require.NoError(t, libibverbs.ReqNotifyCq(cq, 0))
	require.False(t, isEmpty())
	poll(helpAfter)
	require.True(t, isEmpty())
}

// Arming a queue counts, as the node's worker naps until the count changes.
func TestArmsAreCounted(t *testing.T) {
	r := newRig(t)
	door := doorbell()
	before := atomic.LoadUint32(door.Arms)
	require.NoError(t, libibverbs.ReqNotifyCq(r.cq(4), 0))
	require.Equal(t, before+1, atomic.LoadUint32(door.Arms))
}
