package ibverbs

import (
	"bytes"
	"encoding"
	"io"
	"math"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// C reads the list as it lies.
func TestTagBatchList(t *testing.T) {
	mr := fakeMR(t, 100, 5)
	srq := &SRQ{}
	b, err := NewTagBatch(3, 2)
	require.NoError(t, err)
	require.Zero(t, b.Len())
	for range 2 { // the second time over the remains of the first
		b.Reset()
		recv := TagRecv{Tag: 0x1122334455667788, Mask: math.MaxUint64, ID: 9}
		require.NoError(t, b.Add(TagOp{ID: 1, Flags: TagOpSignaled}, recv, mr.Sub(0, 10), mr.Sub(20, 30)))
		require.NoError(t, b.Delete(TagOp{ID: 2, Flags: TagOpSignaled | TagOpSync, Unexpected: 7}, TagHandle{srq, 0x55}))
		require.NoError(t, b.Sync(TagOp{ID: 3, Unexpected: 1 << 31}))
		require.ErrorIs(t, b.Sync(TagOp{}), ErrBatchFull)
		require.Equal(t, 3, b.Len())

		wrs := b.arena.used()
		require.Equal(t, []libibverbs.Sge{
			{Addr: mr.addr(), Length: 10, Lkey: 5}, {Addr: mr.addr() + 20, Length: 30, Lkey: 5},
		}, sgesOf(wrs[0].Tm.Add.SgList, wrs[0].Tm.Add.NumSge))
		require.Equal(t, []libibverbs.OpsWr{
			{
				WrId: 1, Next: &wrs[1], Opcode: libibverbs.IBV_WR_TAG_ADD, Flags: 1,
				Tm: libibverbs.OpsWrTm{Add: libibverbs.OpsWrTmAdd{
					RecvWrId: 9, SgList: &b.arena.sges[0], NumSge: 2, Tag: 0x1122334455667788, Mask: math.MaxUint64,
				}},
			},
			{
				WrId: 2, Next: &wrs[2], Opcode: libibverbs.IBV_WR_TAG_DEL, Flags: 3,
				Tm: libibverbs.OpsWrTm{UnexpectedCnt: 7, Handle: 0x55},
			},
			{
				WrId: 3, Opcode: libibverbs.IBV_WR_TAG_SYNC, Flags: 2,
				Tm: libibverbs.OpsWrTm{UnexpectedCnt: 1 << 31},
			},
		}, wrs)
		require.Equal(t, []*SRQ{nil, srq, nil}, b.deletes)
		for i := -1; i < 4; i++ {
			_, err := b.Handle(i)
			require.ErrorIs(t, err, syscall.EINVAL, "nothing is posted")
		}
	}
}

func TestTagBatchRefuses(t *testing.T) {
	mr := fakeMR(t, 100, 5)
	b, err := NewTagBatch(2, 1)
	require.NoError(t, err)
	for name, err := range map[string]error{
		"tag 0x11 has bits that its mask 0x1 lacks":        b.Add(TagOp{}, TagRecv{Tag: 0x11, Mask: 1}),
		"2 segments in a batch made for 1":                 b.Add(TagOp{}, TagRecv{}, mr.Sub(0, 1), mr.Sub(1, 1)),
		"segment 0: segment of 2 bytes at 99 is outside":   b.Add(TagOp{}, TagRecv{}, mr.Sub(99, 2)),
		"segment 0: segment without a memory region":       b.Add(TagOp{}, TagRecv{}, Segment{}),
		"the handle is zero; TagBatch.Handle returns one":  b.Delete(TagOp{}, TagHandle{}),
		"operation 0 of a batch of 0 has added no receive": second(b.Handle(0)),
	} {
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.ErrorContains(t, err, name)
	}
	require.Zero(t, b.Len())
	for _, b := range []*TagBatch{nil, {}} {
		b.Reset()
		require.Zero(t, b.Len())
		require.ErrorIs(t, b.Add(TagOp{}, TagRecv{}), syscall.EINVAL)
		require.ErrorIs(t, b.Delete(TagOp{}, TagHandle{srq: &SRQ{}}), syscall.EINVAL)
		require.ErrorIs(t, b.Sync(TagOp{}), syscall.EINVAL)
		require.ErrorIs(t, second(b.Handle(0)), syscall.EINVAL)
	}
	for _, sizes := range [][2]int{{0, 1}, {-1, 1}, {1, -1}, {1<<20 + 1, 1}} {
		_, err := NewTagBatch(sizes[0], sizes[1])
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// The headers are C's structs.
func TestTagHeaders(t *testing.T) {
	tmh := libibverbs.Tmh{
		Opcode: uint8(TagMessageEager), AppCtx: libibverbs.NewBe32(0x01020304), Tag: libibverbs.NewBe64(0x1122334455667788),
	}
	rvh := libibverbs.Rvh{
		Va: libibverbs.NewBe64(1<<63 + 5), Rkey: libibverbs.NewBe32(0xA1B2C3D4), Len: libibverbs.NewBe32(1<<32 - 1),
	}
	require.EqualValues(t, TagHeaderLen, unsafe.Sizeof(tmh))
	require.EqualValues(t, RendezvousHeaderLen, unsafe.Sizeof(rvh))
	want := append(unsafe.Slice((*byte)(unsafe.Pointer(&tmh)), TagHeaderLen), unsafe.Slice((*byte)(unsafe.Pointer(&rvh)), RendezvousHeaderLen)...)

	header := TagHeader{Message: TagMessageEager, Context: 0x01020304, Tag: 0x1122334455667788}
	rendezvous := RendezvousHeader{Addr: 1<<63 + 5, RKey: 0xA1B2C3D4, Len: 1<<32 - 1}
	var got []byte
	for _, h := range []encoding.BinaryAppender{header, rendezvous} {
		var err error
		got, err = h.AppendBinary(got)
		require.NoError(t, err)
	}
	require.Equal(t, want, got)
	message := append(got, "data"...)
	h, rest, err := ParseTagHeader(message)
	require.NoError(t, err)
	require.Equal(t, header, h)
	r, rest, err := ParseRendezvousHeader(rest)
	require.NoError(t, err)
	require.Equal(t, rendezvous, r)
	require.Equal(t, "data", string(rest))

	for n := range TagHeaderLen {
		_, _, err := ParseTagHeader(message[:n])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		_, _, err = ParseRendezvousHeader(message[:n])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	kept, err := TagHeader{Message: 256}.AppendBinary([]byte("kept"))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Equal(t, "kept", string(kept))
	kept, err = RendezvousHeader{Len: 1 << 32}.AppendBinary([]byte("kept"))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Equal(t, "kept", string(kept))
}

// What is read is what would be sent, but for bytes that mean nothing.
func FuzzTagHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xFF}, TagHeaderLen+RendezvousHeaderLen+1))
	f.Add([]byte("\x01\x00\x00\x00abcd01234567ADDRESS!RKEYLEN!data"))
	f.Fuzz(func(t *testing.T, message []byte) {
		header, rest, err := ParseTagHeader(message)
		if len(message) < TagHeaderLen {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			return
		}
		require.NoError(t, err)
		sent, err := header.AppendBinary(nil)
		require.NoError(t, err)
		want := bytes.Clone(message)
		clear(want[1:4])
		require.Equal(t, want, append(sent, rest...))

		rendezvous, data, err := ParseRendezvousHeader(rest)
		if len(rest) < RendezvousHeaderLen {
			require.ErrorIs(t, err, io.ErrUnexpectedEOF)
			return
		}
		require.NoError(t, err)
		sent, err = rendezvous.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, rest, append(sent, data...))
	})
}
