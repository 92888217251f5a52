// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"encoding/binary"
	"math"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
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

// A nap ends when its word has changed, in Go's netpoller and in a Poller. A
// node that naps hears no bell.
func TestBellNap(t *testing.T) {
	for name, polls := range map[string]bool{"netpoller": false, "poller": true} {
		t.Run(name, func(t *testing.T) {
			b := NewBell(new(uint32))
			if polls {
				_, err := NewPoller(b)
				require.NoError(t, err)
			}
			var word uint32
			b.Nap(time.Hour, &word, 1) // has changed already
			for range 100 {
				before := atomic.LoadUint32(&word)
				done := make(chan struct{})
				go func() {
					defer close(done)
					for atomic.LoadUint32(&word) == before {
						b.Nap(time.Hour, &word, before)
					}
				}()
				b.Ring()
				require.True(t, b.IsRung())
				b.Hear()
				atomic.AddUint32(&word, 1)
				b.wake()
				take(t, done, "the end of the nap")
			}
			b.Nap(time.Millisecond, &word, atomic.LoadUint32(&word))
		})
	}
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

// No number of wake-ups, and no process that fills the counter of the eventfd,
// keeps a node from being woken.
func TestBellCounter(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	counted := func() uint64 {
		var count [8]byte
		_, err := syscall.Read(b.event, count[:])
		require.NoError(t, err)
		return binary.NativeEndian.Uint64(count[:])
	}
	for _, full := range []bool{false, true} {
		if full {
			require.LessOrEqual(t, counted(), uint64(100), "each wake adds 1")
			_, err := syscall.Write(b.event, binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1))
			require.NoError(t, err)
		}
		for range 100 {
			done := make(chan struct{})
			go func() {
				b.Sleep(func() time.Duration { return MaxSleep })
				close(done)
			}()
			until(t, "the goroutine sleeps", b.IsAsleep)
			b.Ring()
			take(t, done, "the end of the sleep")
			b.Hear()
		}
	}
	require.LessOrEqual(t, counted(), uint64(100))
}

// A thread that relieves a node which has not said yet for how long it sleeps
// keeps it awake, since it will not wake the node.
func TestBellRelieveEarly(t *testing.T) {
	b := NewBell(new(uint32))
	_, err := NewPoller(b)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		b.Sleep(func() time.Duration {
			require.True(t, b.Relieve())
			return time.Hour
		})
		close(done)
	}()
	take(t, done, "the end of the sleep") // before MaxSleep
}

// A descriptor that the netpoller does not take stays open, and the node looks
// for work again and again.
func TestBellWithoutNetpoller(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	b := NewBell(new(uint32))
	require.NoError(t, syscall.Close(b.event))
	require.NoError(t, syscall.Dup3(int(file.Fd()), b.event, syscall.O_CLOEXEC))
	defer b.close()
	for range 3 {
		b.Sleep(func() time.Duration { return MaxSleep })
		runtime.GC()
	}
	require.NoError(t, syscall.Fstat(b.event, &syscall.Stat_t{}))
}

func TestCheckEvent(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	require.NoError(t, checkEvent(b.event))
	require.NoError(t, syscall.SetNonblock(b.event, false))
	require.ErrorIs(t, checkEvent(b.event), syscall.EINVAL)
	require.NoError(t, syscall.SetNonblock(b.event, true))
	var ends [2]int
	require.NoError(t, syscall.Pipe2(ends[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC))
	defer syscall.Close(ends[0])
	defer syscall.Close(ends[1])
	require.ErrorContains(t, checkEvent(ends[1]), "refused as a bell's descriptor")
	require.ErrorIs(t, checkEvent(-1), syscall.EBADF)
}
