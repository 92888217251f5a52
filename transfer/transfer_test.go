// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/transfer"
)

func random(n int) []byte {
	b := make([]byte, n)
	src := rand.NewChaCha8([32]byte{1})
	_, _ = src.Read(b)
	return b
}

// Requests of all sizes, in both directions, read and write what they should.
func TestReadAndWrite(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	a, b := newEngine(t, transfer.Config{Connections: 2}), newEngine(t, transfer.Config{})
	const size = 3 << 20
	region, err := b.Alloc(size, transfer.RegionConfig{Name: "memory", Access: transfer.ReadAccess | transfer.WriteAccess})
	require.NoError(t, err)
	dialed, accepted := connect(t, a, b)
	remote, err := dialed.Region(ctx, "memory")
	require.NoError(t, err)
	require.EqualValues(t, size, remote.Len())

	data := random(size)
	batch := dialed.NewBatch(16)
	at := 0
	for _, n := range []int{1, 0, 7, 4096, 1 << 20, 100, 128<<10 + 1} {
		require.NoError(t, batch.Write(remote, uint64(at), data[at:at+n]))
		at += n
	}
	require.NoError(t, batch.Write(remote, uint64(at), data[at:]))
	require.NoError(t, batch.Notify([]byte("written")))
	require.NoError(t, batch.Submit(ctx))
	message, err := accepted.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "written", string(message))
	require.True(t, bytes.Equal(data, region.Bytes()))
	require.NoError(t, batch.Wait(ctx))

	into := make([]byte, size)
	batch.Reset()
	require.NoError(t, batch.Read(into[:size/2], remote, 0))
	require.NoError(t, batch.Read(into[size/2:], remote, size/2))
	require.NoError(t, batch.Submit(ctx))
	require.NoError(t, batch.Wait(ctx))
	require.True(t, bytes.Equal(data, into))
	moved, total := batch.Progress()
	require.Equal(t, []int64{size, size}, []int64{moved, total})

	// The other way around.
	_, err = a.Register(data, transfer.RegionConfig{Name: "data", Access: transfer.ReadAccess})
	require.NoError(t, err)
	remote, err = accepted.Region(ctx, "data")
	require.NoError(t, err)
	clear(into)
	batch = accepted.NewBatch(1)
	require.NoError(t, batch.Read(into, remote, 0))
	require.NoError(t, batch.Submit(ctx))
	require.NoError(t, batch.Wait(ctx))
	require.True(t, bytes.Equal(data, into))
}
