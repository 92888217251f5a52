// SPDX-License-Identifier: Apache-2.0

package tag

import (
	"bytes"
	"encoding"
	"io"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
)

// The headers are C's structs.
func TestHeaders(t *testing.T) {
	tmh := libibverbs.Tmh{
		Opcode: uint8(MessageEager), AppCtx: libibverbs.NewBe32(0x01020304), Tag: libibverbs.NewBe64(0x1122334455667788),
	}
	rvh := libibverbs.Rvh{
		Va: libibverbs.NewBe64(1<<63 + 5), Rkey: libibverbs.NewBe32(0xA1B2C3D4), Len: libibverbs.NewBe32(1<<32 - 1),
	}
	require.EqualValues(t, HeaderLen, unsafe.Sizeof(tmh))
	require.EqualValues(t, RendezvousHeaderLen, unsafe.Sizeof(rvh))
	want := append(unsafe.Slice((*byte)(unsafe.Pointer(&tmh)), HeaderLen), unsafe.Slice((*byte)(unsafe.Pointer(&rvh)), RendezvousHeaderLen)...)

	header := Header{Kind: MessageEager, Context: 0x01020304, Tag: 0x1122334455667788}
	rendezvous := RendezvousHeader{Addr: 1<<63 + 5, RKey: 0xA1B2C3D4, Len: 1<<32 - 1}
	var got []byte
	for _, h := range []encoding.BinaryAppender{header, rendezvous} {
		var err error
		got, err = h.AppendBinary(got)
		require.NoError(t, err)
	}
	require.Equal(t, want, got)
	message := append(got, "data"...)
	h, rest, err := ParseHeader(message)
	require.NoError(t, err)
	require.Equal(t, header, h)
	r, rest, err := ParseRendezvousHeader(rest)
	require.NoError(t, err)
	require.Equal(t, rendezvous, r)
	require.Equal(t, "data", string(rest))

	for n := range HeaderLen {
		_, _, err := ParseHeader(message[:n])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		_, _, err = ParseRendezvousHeader(message[:n])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	kept, err := Header{Kind: 256}.AppendBinary([]byte("kept"))
	require.ErrorIs(t, err, syscall.EINVAL)
	require.Equal(t, "kept", string(kept))
	for name, bad := range map[string]RendezvousHeader{
		"too long": {Len: 1 << 32}, "outside": RendezvousHeader(ibverbs.RemoteBuffer{Len: 8}.Sub(1, 8)),
	} {
		kept, err = bad.AppendBinary([]byte("kept"))
		require.ErrorIs(t, err, syscall.EINVAL, name)
		require.Equal(t, "kept", string(kept), name)
	}
}

// What is read is what would be sent, but for bytes that mean nothing.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xFF}, HeaderLen+RendezvousHeaderLen+1))
	f.Add([]byte("\x01\x00\x00\x00abcd01234567ADDRESS!RKEYLEN!data"))
	f.Fuzz(func(t *testing.T, message []byte) {
		header, rest, err := ParseHeader(message)
		if len(message) < HeaderLen {
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
