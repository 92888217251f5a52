// SPDX-License-Identifier: Apache-2.0

package object

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhenIdle(t *testing.T) {
	parent := made(t, "parent")
	a, b := made(t, "a", parent), made(t, "b", parent)
	calls := 0
	parent.WhenIdle(func() { calls++ })
	require.Zero(t, calls)
	require.NoError(t, a.Close(nil, destroyed))
	require.Zero(t, calls)
	require.NoError(t, b.Close(nil, destroyed))
	require.Equal(t, 1, calls)
	require.NoError(t, made(t, "c", parent).Close(nil, destroyed))
	require.Equal(t, 2, calls, "each time")

	none := made(t, "none")
	none.WhenIdle(func() { require.NoError(t, none.Close(nil, destroyed)) })
	require.True(t, none.Closed(), "at once")
}

// An object that closes with its last child.
func TestCloseWhenIdle(t *testing.T) {
	parent := made(t, "parent")
	child := made(t, "child", parent)
	parent.WhenIdle(func() { _ = parent.Close(nil, destroyed) })
	require.False(t, parent.Closed())
	require.NoError(t, child.Close(nil, destroyed))
	require.True(t, parent.Closed())
}
