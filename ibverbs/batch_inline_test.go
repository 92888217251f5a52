package ibverbs

import (
	"bytes"
	"errors"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/generated/libibverbs"
)

// inlineData returns what C finds as the data of an inline request.
func inlineData(b *SendBatch, i int) (data []byte) {
	wr := &b.arena.wrs[i]
	for _, sge := range sgesOf(wr.SgList, wr.NumSge) {
		// An address of mapped memory, or of a fake region that the batch keeps.
		data = append(data, unsafe.Slice(*(**byte)(unsafe.Pointer(&sge.Addr)), sge.Length)...)
	}
	runtime.KeepAlive(b)
	return data
}

// requireCopied says that what came from InlineBytes is in the memory which the
// batch has now. What it had before stays mapped until a collection.
func requireCopied(t *testing.T, b *SendBatch, i int) {
	t.Helper()
	first := addressOf(b.copies.of(i))
	for k, mr := range b.owners(i) {
		if sge := b.arena.place(i)[k]; mr == nil {
			require.GreaterOrEqual(t, sge.Addr, first)
			require.LessOrEqual(t, sge.Addr+uint64(sge.Length), first+uint64(b.copies.slot))
		}
	}
}

func TestInlineBytes(t *testing.T) {
	mr := fakeMR(t, 64, 7)
	copy(mr.bytes, "region")
	to := RemoteBuffer{Addr: 0x1000, RKey: 5, Len: 100}
	ah := &AH{raw: &libibverbs.Ah{}}
	ah.object.InitUnlisted("fake AH")
	b, err := NewSendBatch(8, 3)
	require.NoError(t, err)
	one, two := []byte("one"), []byte("twotwo")
	add := func(flags SendFlags, segments ...Segment) error {
		return errors.Join(
			b.Send(0, flags, segments...), b.SendImm(1, 1, flags, segments...), b.SendInv(2, 1, flags, segments...),
			b.Write(3, to, flags, segments...), b.WriteImm(4, to, 1, flags, segments...),
			b.SendTo(5, Destination{AH: ah}, flags, segments...), b.SendImmTo(6, Destination{AH: ah}, 1, flags, segments...),
		)
	}
	require.NoError(t, add(SendInline, InlineBytes(one), mr.Sub(0, 6), InlineBytes(two).Sub(0, 3)))
	clear(one) // they are copied
	clear(two)
	require.Equal(t, 7, b.Len())
	for i := range 7 {
		require.Equal(t, "oneregiontwo", string(inlineData(b, i)))
	}
	require.NoError(t, b.Send(7, SendInline, InlineBytes(nil), InlineBytes([]byte{})))
	require.Empty(t, inlineData(b, 7))
	require.NoError(t, b.hold())
	b.release()

	// What is set later replaces it, and others are as they were, however large.
	for _, n := range []int{1, 64, 65, 4096, 3} {
		data := bytes.Repeat([]byte{byte(n)}, n)
		require.NoError(t, b.WR(2).SetSegments(InlineBytes(data[:n/2]), InlineBytes(data[n/2:])))
		require.Equal(t, data, inlineData(b, 2))
		for _, i := range []int{0, 1, 3, 6} {
			require.Equal(t, "oneregiontwo", string(inlineData(b, i)))
			requireCopied(t, b, i)
		}
	}
	require.NoError(t, b.WR(2).SetSegments(mr.Sub(0, 2)))
	require.NoError(t, b.WR(2).SetFlags(0))
	b.Reset()
	require.NoError(t, add(0, mr.All()))
}

// Requests that are added outgrow the memory of those before.
func TestInlineBytesGrow(t *testing.T) {
	b, err := NewSendBatch(16, 2)
	require.NoError(t, err)
	data := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 4096>>(16-i)+i) }
	for i := range 16 {
		d := data(i)
		require.NoError(t, b.Send(uint64(i), SendInline, InlineBytes(d[:i/2]), InlineBytes(d[i/2:])))
	}
	for i := range 16 {
		require.Equal(t, string(data(i)), string(inlineData(b, i)), i)
		requireCopied(t, b, i)
	}
}

func TestInlineBytesRefused(t *testing.T) {
	mr := fakeMR(t, 64, 7)
	at := RemoteBuffer{Addr: 0x1000, Len: 8}
	some := InlineBytes(make([]byte, 8))
	b, err := NewSendBatch(2, 2)
	require.NoError(t, err)
	recv, err := NewRecvBatch(1, 1)
	require.NoError(t, err)
	require.NoError(t, b.Send(1, SendInline, some))
	_, remote := some.Remote()
	const only = "8 bytes from InlineBytes: they can only be sent, with SendInline"
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"not inline":       {b.Send(1, SendSignaled, some), "segment 0: " + only},
		"behind another":   {b.Send(1, 0, mr.All(), some), "segment 1: " + only},
		"read":             {b.Read(1, at, SendInline, some), only},
		"atomic":           {b.FetchAdd(1, at, 1, SendInline, some), only},
		"receive":          {recv.Recv(1, some), only},
		"header":           {b.TSO(1, some, 9, 0), "header: " + only},
		"remote":           {remote, only},
		"another is wrong": {b.Send(1, SendInline, some, mr.Sub(64, 1)), "segment 1: segment of 1 bytes at 64 is outside fake MR"},
		"first is wrong":   {b.Send(1, SendInline, mr.Sub(64, 1), some), "segment 0: segment of 1 bytes at 64 is outside fake MR"},
		"too many":         {b.Send(1, SendInline, some, some, some), "3 segments in a batch made for 2"},
		"too long":         {b.Send(1, SendInline, InlineBytes(make([]byte, 4097))), "4097 bytes from InlineBytes, more than 4096"},
		"too long in two":  {b.Send(1, SendInline, InlineBytes(make([]byte, 4090)), some), "4098 bytes from InlineBytes, more than 4096"},
		"remote too small": {b.Write(1, at.Sub(0, 7), SendInline, some), "8 bytes for a remote buffer of 7"},
		"flags":            {b.WR(0).SetFlags(0), "segment 0 is from InlineBytes, and stays inline"},
		"set too long":     {b.WR(0).SetSegments(InlineBytes(make([]byte, 5000))), "bytes from InlineBytes, more than 4096"},
		"set a wrong one":  {b.WR(0).SetSegments(some, mr.Sub(64, 1)), "segment 1: segment of 1 bytes at 64"},
	} {
		require.ErrorIs(t, tt.err, syscall.EINVAL, name)
		require.ErrorContains(t, tt.err, tt.want, name)
	}
	require.Equal(t, 1, b.Len())
	require.Len(t, inlineData(b, 0), 8)
	require.NoError(t, b.Send(2, 0, mr.All()))
	require.ErrorContains(t, b.WR(1).SetSegments(some), only)
}

// Neither a batch nor the memory of what is sent is allocated, even if it is on
// the stack.
func TestInlineBytesAllocateNothing(t *testing.T) {
	mr := fakeMR(t, 64, 7)
	b, err := NewSendBatch(4, 2)
	require.NoError(t, err)
	fill := func() {
		var header [32]byte
		header[0] = byte(b.Len())
		b.Reset()
		_ = b.Send(1, SendInline, InlineBytes(header[:]), mr.Sub(0, 8))
		_ = b.Write(2, RemoteBuffer{Len: 64}, SendInline, InlineBytes(header[:8]))
		_ = b.WR(0).SetSegments(InlineBytes(header[:]), InlineBytes(header[8:]))
	}
	fill()
	require.Equal(t, 2, b.Len())
	require.Zero(t, testing.AllocsPerRun(100, fill))
}
