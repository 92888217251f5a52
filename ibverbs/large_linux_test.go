// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// twice returns memory that is mapped at two addresses.
func twice(t *testing.T, size int) (first, second []byte) {
	f := must(os.CreateTemp("/dev/shm", ""))(t)
	defer f.Close()
	require.NoError(t, os.Remove(f.Name()))
	require.NoError(t, f.Truncate(int64(size)))
	for _, b := range []*[]byte{&first, &second} {
		*b = must(syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))(t)
		t.Cleanup(func() { require.NoError(t, syscall.Munmap(*b)) })
	}
	return first, second
}

// Large writes of a queue pair go on although no thread polls for it, and
// another thread polls for another queue pair.
func TestLargeWritesNotPolled(t *testing.T) {
	r := open(t)
	memory, seen := twice(t, largeSize) // the race detector does not know that they are the same
	polled, _ := r.pair(nil)
	other, _ := r.pair(nil)
	x, a := &speaker{end: polled, wcs: make([]ibverbs.WC, 1)}, &speaker{end: other, wcs: make([]ibverbs.WC, 1)}
	from := r.alloc(largeSize, anyAccess)
	to := must(r.pd.Register(memory, anyAccess))(t)
	r.cleanup(to)
	pattern(from.Bytes(), 7)
	const writes = 8
	for i := range writes {
		at := largeSize / writes * (writes - 1 - i) // the first bytes come last
		require.NoError(t, a.send.Write(uint64(i), to.Remote().Sub(uint64(at), uint64(largeSize-at)), 0, from.Sub(at, largeSize-at)))
	}
	require.NoError(t, a.send.Write(writes, to.Remote(), ibverbs.SendSignaled, from.All()))
	small := r.alloc(8, anyAccess)
	require.NoError(t, x.send.Write(1, small.Remote(), ibverbs.SendSignaled, small.All()))
	const posts = 20
	for range posts { // a device in user space wakes its own thread, which then leaves the work to this one
		_, err := x.qp.PostSend(x.send)
		require.NoError(t, err)
	}
	for range posts {
		require.NoError(t, x.spin(x.sendCQ))
	}
	poll := func() {
		for range 1000 {
			_, err := x.sendCQ.Poll(x.wcs)
			require.NoError(t, err)
		}
	}
	poll()
	_, err := a.qp.PostSend(a.send)
	require.NoError(t, err)
	for deadline := time.Now().Add(patience); !bytes.Equal(from.Bytes(), seen); {
		require.True(t, time.Now().Before(deadline), "not all has arrived")
		poll()
	}
	require.NoError(t, a.spin(a.sendCQ))
	require.EqualValues(t, writes, a.wcs[0].ID())
}
