// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"encoding"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

var (
	_ encoding.BinaryAppender    = ibverbs.RemoteBuffer{}
	_ encoding.BinaryMarshaler   = ibverbs.RemoteBuffer{}
	_ encoding.BinaryUnmarshaler = (*ibverbs.RemoteBuffer)(nil)
)

func TestRemoteBufferBinary(t *testing.T) {
	r := ibverbs.RemoteBuffer{Addr: 0x0102030405060708, RKey: 0x090a0b0c, Len: 0x0d0e0f1011121314}
	b, err := r.MarshalBinary()
	require.NoError(t, err)
	require.Equal(t, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, b)
	require.Len(t, b, ibverbs.RemoteBufferSize)
	appended, err := r.AppendBinary([]byte("before"))
	require.NoError(t, err)
	require.Equal(t, append([]byte("before"), b...), appended)

	var back ibverbs.RemoteBuffer
	require.NoError(t, back.UnmarshalBinary(append(b, 0, 0, 7)))
	require.Equal(t, r, back)
	for n := range b {
		short := r
		err := short.UnmarshalBinary(b[:n])
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "fewer than the 20 of a remote buffer")
		require.Equal(t, r, short, "left alone")
	}
}

func FuzzRemoteBufferBinary(f *testing.F) {
	f.Add(make([]byte, ibverbs.RemoteBufferSize))
	f.Add([]byte("short"))
	f.Add([]byte("a remote buffer, and what follows it"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ibverbs.RemoteBuffer
		if r.UnmarshalBinary(b) != nil {
			require.Less(t, len(b), ibverbs.RemoteBufferSize)
			return
		}
		back, err := r.MarshalBinary()
		require.NoError(t, err)
		require.Equal(t, b[:ibverbs.RemoteBufferSize], back)
	})
}
