package ibverbs_test

import (
	"bytes"
	"os"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/ibverbs"
)

func TestAlloc(t *testing.T) {
	r := open(t)
	for _, size := range []int{1, 4096, 4097, 1 << 22} {
		mr := r.alloc(size, ibverbs.AccessLocalWrite)
		require.Equal(t, size, mr.Len())
		require.True(t, bytes.Equal(make([]byte, size), mr.Bytes()), "zeroed")
		require.Equal(t, ibverbs.RemoteBuffer{
			Addr: uint64(uintptr(unsafe.Pointer(&mr.Bytes()[0]))), RKey: mr.RKey(), Len: uint64(size),
		}, mr.Remote())
		require.Equal(t, mr.Raw().Lkey, mr.LKey())
		require.Equal(t, size, mr.All().Len())
	}
}

// Memory of Go's heap moves data like any other, through collections.
func TestRegister(t *testing.T) {
	r := open(t)
	a, b := r.pair(nil)
	heap := make([]byte, 10000)
	from, to := heap[1:4001], heap[5003:9003]
	src := must(r.pd.Register(from, 0))(t)
	r.cleanup(src)
	dst := must(r.pd.Register(to, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
	r.cleanup(dst)
	require.Same(t, &from[0], &src.Bytes()[0])
	pattern(from, 7)
	runtime.GC()
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(1, dst.Remote(), ibverbs.SendSignaled, src.All())
	})
	collectOK(t, a.sendCQ, 1)
	runtime.GC()
	require.True(t, bytes.Equal(from, to))

	// The device knows the slice only, not the array around it.
	beyond := ibverbs.RemoteBuffer{Addr: dst.Remote().Addr - 1, RKey: dst.RKey(), Len: 1}
	a.postSend(t, func(s *ibverbs.SendBatch) error {
		return s.Write(2, beyond, ibverbs.SendSignaled, src.Sub(0, 1))
	})
	requireWC(t, collect(t, a.sendCQ, 1)[0], 2, a.qp, ibverbs.WCRemoteAccess, ibverbs.WCClassRemote)
	_ = b
}

func TestRegionsThatCannotBe(t *testing.T) {
	r := open(t)
	memory := make([]byte, 64)
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"no bytes":       {second(r.pd.Alloc(0, 0)), "): 0 bytes"},
		"negative":       {second(r.pd.Alloc(-1, 0)), "): -1 bytes"},
		"nil slice":      {second(r.pd.Register(nil, 0)), "): no memory"},
		"empty slice":    {second(r.pd.Register(memory[:0], 0)), "): no memory"},
		"remote write":   {second(r.pd.Register(memory, ibverbs.AccessRemoteWrite)), "AccessRemoteWrite without AccessLocalWrite"},
		"remote atomics": {second(r.pd.Alloc(64, ibverbs.AccessRemoteAtomic)), "AccessRemoteAtomic without AccessLocalWrite"},
	} {
		require.ErrorContains(t, tt.err, tt.want, name)
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		var e *ibverbs.ArgumentError
		require.ErrorAs(t, tt.err, &e, name)
		require.Equal(t, "ibv_reg_mr", e.Op)
	}
}

func TestRegionAfterClose(t *testing.T) {
	r := open(t)
	mr := must(r.pd.Alloc(64, 0))(t)
	segment := mr.Sub(0, 8)
	require.Len(t, segment.Bytes(), 8)
	require.NoError(t, mr.Close())
	require.NoError(t, mr.Close())
	require.Nil(t, mr.Bytes())
	require.Nil(t, segment.Bytes())
	require.Equal(t, 64, mr.Len())
	batch := must(ibverbs.NewSendBatch(1, 1))(t)
	require.ErrorIs(t, batch.Send(1, 0, segment), os.ErrClosed)
}
