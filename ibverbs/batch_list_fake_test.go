//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
)

// Each post gives C the requests that the batch has then and no others,
// whatever it had before and however earlier posts ended.
func TestPostedList(t *testing.T) {
	f := newFakeDevice(t)
	closed := fakeMR(t, 64, 1)
	b, err := NewSendBatch(4, 1)
	require.NoError(t, err)
	add := func(ids ...uint64) {
		for _, id := range ids {
			require.NoError(t, b.Send(id, 0))
		}
	}
	posted := func(script fakeverbs.Script) []uint64 {
		script.Completions = 1
		f.Set(script)
		var ids []uint64
		for _, post := range []func(){
			func() { _, _ = f.qp.PostSend(b) },
			func() { _, _, _ = f.qp.PostSendAndSpin(b, f.cq, make([]WC, 1), 0) },
		} {
			before := len(f.Calls())
			post()
			ids = nil
			for _, c := range f.Calls()[before:] {
				ids = append(ids, c.ID)
			}
		}
		return ids
	}
	fails := fakeverbs.Script{FailAt: 1, PostError: int(syscall.ENOMEM)}

	add(1, 2)
	require.Equal(t, []uint64{1, 2}, posted(fakeverbs.Script{}))
	add(3)
	require.Equal(t, []uint64{1, 2, 3}, posted(fakeverbs.Script{}))
	require.Equal(t, []uint64{1}, posted(fails))
	require.ErrorIs(t, b.Send(4, 0, closed.Sub(0, 65)), syscall.EINVAL)
	require.Equal(t, []uint64{1, 2, 3}, posted(fakeverbs.Script{}), "without what was refused")
	add(4)
	require.ErrorIs(t, b.Send(5, 0), ErrBatchFull)
	require.Equal(t, []uint64{1, 2, 3, 4}, posted(fakeverbs.Script{}))

	b.Reset()
	require.Empty(t, posted(fakeverbs.Script{}))
	add(6)
	require.Equal(t, []uint64{6}, posted(fakeverbs.Script{}))
	require.NoError(t, b.Send(7, SendInline, closed.All()))
	closeFake(t, closed)
	_, err = f.qp.PostSend(b)
	require.ErrorIs(t, err, os.ErrClosed)
	require.Empty(t, posted(fakeverbs.Script{}))
	require.NoError(t, b.WR(1).SetFlags(0))
	add(8)
	require.Equal(t, []uint64{6, 7, 8}, posted(fakeverbs.Script{}))
}

// A request that is refused keeps no memory reachable.
func TestRefusedRequestsOwnNothing(t *testing.T) {
	mr, device := fakeMR(t, 64, 1), fakeMR(t, 64, 2)
	device.bytes = nil
	b, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	for _, err := range []error{
		b.Send(1, 0, mr.All(), mr.Sub(60, 5)),
		b.Send(1, SendInline, mr.All(), device.All()),
		b.Write(1, RemoteBuffer{Len: 127}, 0, mr.All(), mr.All()),
	} {
		require.ErrorIs(t, err, syscall.EINVAL)
		require.Zero(t, b.Len())
		require.Equal(t, make([]*MR, 4), b.owner)
	}
}
