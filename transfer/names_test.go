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
