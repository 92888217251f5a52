// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBellWaits(t *testing.T) {
	b := NewBell(new(uint32))
	require.False(t, b.Waits(), "silent")
	b.Ring()
	require.True(t, b.Waits(), "no thread hears it")
	require.True(t, b.Hear())
	require.False(t, b.Waits(), "heard")
	b.Ring()
	heard := make(chan struct{})
	go func() {
		b.Hear()
		close(heard)
	}()
	take(t, heard, "the end of Hear")
	require.False(t, b.Waits())
}
