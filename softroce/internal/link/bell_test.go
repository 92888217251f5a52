// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"testing"
	"time"

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

// A thread that relieves a sleeping node wakes it only if it leaves work.
func TestBellRelieve(t *testing.T) {
	b := NewBell(new(uint32))
	require.False(t, b.Relieve(), "the node is awake")
	done := make(chan struct{})
	go func() {
		wait(b)
		close(done)
	}()
	until(t, "the goroutine sleeps", b.IsAsleep)
	for range 1000 {
		require.True(t, b.Relieve())
		require.False(t, b.Relieve())
		b.Ring()
		require.True(t, b.Hear())
		b.Resume()
	}
	require.True(t, b.Relieve())
	b.Ring()
	b.Resume()
	take(t, done, "the end of the sleep")
}

// A node that wakes by itself while a thread relieves it can sleep again.
func TestBellRelieveLate(t *testing.T) {
	b := NewBell(new(uint32))
	b.Sleep(func() time.Duration {
		require.True(t, b.Relieve())
		return 0
	})
	b.Resume()
	require.True(t, b.IsAsleep())
	slept := false
	b.Sleep(func() time.Duration {
		slept = true
		return 0
	})
	require.True(t, slept)
	require.False(t, b.IsAsleep())
}
