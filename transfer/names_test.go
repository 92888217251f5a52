// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/transfer"
)

// A region may have the name of one that is being closed as soon as that is
// over, whatever the peers know by then.
func TestNameAgain(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	a, b := newEngine(t, transfer.Config{}), newEngine(t, transfer.Config{})
	first, _ := connect(t, a, b)
	second, _ := connect(t, a, b)
	old, err := b.Alloc(4096, transfer.RegionConfig{Name: "again", Access: transfer.ReadAccess})
	require.NoError(t, err)
	for range 100 {
		var closing sync.WaitGroup
		closing.Go(func() { require.NoError(t, old.Close()) })
		var next *transfer.Region
		for next == nil {
			if next, err = b.Alloc(4096, transfer.RegionConfig{Name: "again", Access: transfer.ReadAccess}); err != nil {
				require.ErrorIs(t, err, os.ErrExist)
			}
		}
		closing.Wait()
		old = next
	}
	for _, p := range []*transfer.Peer{first, second} {
		_, err := p.Region(ctx, "again")
		require.NoError(t, err)
		require.EqualValues(t, 1, p.Stats().Sessions)
	}
	closed, err := a.Alloc(4096, transfer.RegionConfig{})
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	remote, err := first.Region(ctx, "again")
	require.NoError(t, err)
	batch := first.NewBatch(1)
	require.NoError(t, batch.ReadRegion(closed, 0, 4096, remote, 0))
	require.ErrorIs(t, batch.Submit(ctx), os.ErrClosed)
}

// Find finds what peers can look up, and nothing else.
func TestFind(t *testing.T) {
	needDevice(t)
	e := newEngine(t, transfer.Config{})
	memory := make([]byte, 3<<10)
	outer, err := e.Register(memory[:2<<10], transfer.RegionConfig{Name: "outer", Access: transfer.ReadAccess})
	require.NoError(t, err)
	inner, err := e.Register(memory[100:200], transfer.RegionConfig{Name: "inner"})
	require.NoError(t, err)
	nameless, err := e.Register(memory[2<<10:], transfer.RegionConfig{Access: transfer.ReadAccess})
	require.NoError(t, err)
	type place struct {
		region *transfer.Region
		offset uint64
	}
	find := func(b []byte) place {
		r, offset := e.Find(b)
		return place{r, offset}
	}
	none := place{}
	require.Equal(t, place{outer, 0}, find(memory[:2<<10]))
	require.Equal(t, place{outer, 2<<10 - 1}, find(memory[2<<10-1:2<<10]))
	require.Contains(t, []place{{outer, 150}, {inner, 50}}, find(memory[150:160]))
	require.Equal(t, place{outer, 150}, find(memory[150:201]), "a byte more than inner has")
	for name, b := range map[string][]byte{
		"a byte more than outer has": memory[:2<<10+1], "no name": nameless.Bytes(), "other memory": make([]byte, 1),
		"empty": memory[:0], "nil": nil,
	} {
		require.Equal(t, none, find(b), name)
	}
	require.NoError(t, outer.Close())
	require.Equal(t, place{inner, 50}, find(memory[150:160]))
	require.Equal(t, none, find(memory[150:201]))
	require.NoError(t, e.Close())
	require.Equal(t, none, find(memory[150:160]))
	e = nil
	require.Equal(t, none, find(memory[150:160]))
}
