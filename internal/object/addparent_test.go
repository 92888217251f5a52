// SPDX-License-Identifier: Apache-2.0

package object

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/cerr"
)

func TestAddParent(t *testing.T) {
	var early, late, child Object
	early.Init("early")
	late.Init("late")
	child.Init("child", &early)
	done, err := UseAll(&child, &late)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { child.AddParent(&late) })
	}
	wg.Wait()
	done()

	nothing := func() error { return nil }
	for _, parent := range []*Object{&early, &late} {
		var busy *cerr.BusyError
		require.ErrorAs(t, parent.Close(nil, nothing), &busy)
		require.Equal(t, []string{"child"}, busy.Children)
	}
	for _, o := range []*Object{&child, &late, &early} {
		require.NoError(t, o.Close(nil, nothing))
	}
}
