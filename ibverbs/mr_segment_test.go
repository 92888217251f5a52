package ibverbs

import (
	"math"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

// A region's addresses in work requests may be others than the memory's; what
// is sent inline is read where the memory is.
func TestSegmentAddresses(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	mr.start = 0x5000
	batch, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	require.NoError(t, batch.Send(1, 0, mr.Sub(10, 20)))
	require.NoError(t, batch.Send(2, SendInline, mr.Sub(10, 20), mr.Sub(99, 1)))
	wrs := batch.arena.used()
	require.Equal(t, []libibverbs.Sge{{Addr: 0x500a, Length: 20, Lkey: 7}}, sgesOf(wrs[0].SgList, wrs[0].NumSge))
	require.Equal(t, []libibverbs.Sge{
		{Addr: addressOf(mr.bytes[10:]), Length: 20, Lkey: 7},
		{Addr: addressOf(mr.bytes[99:]), Length: 1, Lkey: 7},
	}, sgesOf(wrs[1].SgList, wrs[1].NumSge))
	remote, err := mr.Sub(10, 20).Remote()
	require.NoError(t, err)
	require.Equal(t, RemoteBuffer{Addr: 0x500a, RKey: 8, Len: 20}, remote)
	require.Equal(t, RemoteBuffer{Addr: 0x5000, RKey: 8, Len: 100}, mr.Remote())
}

func TestSegmentWithoutBytes(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	mr.bytes, mr.size = nil, math.MaxInt
	require.Nil(t, mr.Sub(0, 10).Bytes())
	batch, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	require.NoError(t, batch.Send(1, 0, mr.Sub(1<<30, 8)))
	err = batch.Send(2, SendInline, mr.Sub(0, 8))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "segment 0: memory of fake MR cannot be sent inline")
	require.NoError(t, batch.Send(2, SendInline))
	require.Equal(t, 2, batch.Len())
}

func TestSegmentRanges(t *testing.T) {
	mr := fakeMR(t, 100, 7)
	for _, s := range []Segment{
		{},
		mr.Sub(-1, 1), mr.Sub(0, -1), mr.Sub(0, 101), mr.Sub(100, 1), mr.Sub(101, 0), mr.Sub(math.MaxInt, 1),
		mr.Sub(1, math.MaxInt), mr.Sub(math.MinInt, 0), mr.Sub(0, math.MinInt),
	} {
		require.ErrorIs(t, s.check(), syscall.EINVAL, s)
		_, err := s.Remote()
		require.ErrorIs(t, err, syscall.EINVAL, s)
		require.Nil(t, s.Bytes())
	}
	for _, s := range []Segment{mr.All(), mr.Sub(100, 0), mr.Sub(0, 0), mr.Sub(99, 1)} {
		require.NoError(t, s.check())
		require.Len(t, s.Bytes(), s.Len())
	}

	mr.size = math.MaxInt // too much for a work request, but not for a window or a peer
	require.ErrorIs(t, mr.All().check(), syscall.EINVAL)
	require.NoError(t, mr.Sub(0, math.MaxInt32).check())
	_, err := mr.All().Remote()
	require.NoError(t, err)
}
