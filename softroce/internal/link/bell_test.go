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
				b.Wake()
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

// never says that a Wait goes on.
func never() bool { return false }

// woken returns how often the alarm was rung since the last call.
func woken(t *testing.T, a *alarm) uint64 {
	t.Helper()
	var count [8]byte
	if _, err := syscall.Read(a.fd, count[:]); err != nil {
		require.ErrorIs(t, err, syscall.EAGAIN)
		return 0
	}
	return binary.NativeEndian.Uint64(count[:])
}

// Ringing the bell wakes the goroutine that attends to it, and not the node,
// until the goroutine leaves.
func TestBellAttend(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	atomic.StoreUint32(b.word, Asleep)
	require.True(t, b.Attend())
	require.False(t, b.Attend(), "another goroutine attends")
	require.True(t, b.IsAttended())
	attended := func() bool { return atomic.LoadUint32(b.word) == Attended }
	for range 100 {
		done := make(chan struct{})
		go func() {
			b.Wait(never)
			close(done)
		}()
		until(t, "the goroutine waits", attended)
		require.True(t, b.Relieve(), "a third thread does the work")
		b.Resume()
		require.True(t, attended())
		b.Ring()
		take(t, done, "the end of the wait")
		require.True(t, b.Hear())
	}
	require.Zero(t, woken(t, &b.sleeps))
	require.EqualValues(t, 100, woken(t, &b.waits))
	b.Leave()
	require.False(t, b.IsAsleep())
	b.Resume()
	require.EqualValues(t, Asleep, *b.word)
	b.Ring()
	require.EqualValues(t, 1, woken(t, &b.sleeps))
	require.Zero(t, woken(t, &b.waits))
}

// A node that goes to sleep leaves the bell to the goroutine that attends.
func TestBellAttendAwake(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	require.True(t, b.Attend())
	node := make(chan struct{})
	go func() {
		b.Sleep(func() time.Duration { return MaxSleep })
		close(node)
	}()
	until(t, "the node sleeps", func() bool { return atomic.LoadUint32(b.word) == Attended })
	b.Leave()
	b.Resume()
	b.Ring()
	take(t, node, "the end of the sleep")
}

// A bell that was rung while a goroutine attends, and that no thread has heard,
// wakes the goroutine or, if that has left, the node.
func TestBellAttendRelieved(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	for _, leaves := range []bool{false, true} {
		atomic.StoreUint32(b.word, Asleep)
		require.True(t, b.Attend())
		require.True(t, b.Relieve())
		b.Ring()
		if leaves {
			b.Leave()
		}
		b.Resume()
		require.Equal(t, leaves, woken(t, &b.sleeps) == 1)
		require.Equal(t, leaves, woken(t, &b.waits) == 0)
		b.Leave()
	}
}

// Interrupt ends a wait whose function has begun to return true.
func TestBellInterrupt(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	require.True(t, b.Attend())
	b.Interrupt() // nothing waits
	for range 100 {
		var over atomic.Bool
		done := make(chan struct{})
		go func() {
			b.Wait(over.Load)
			close(done)
		}()
		over.Store(true)
		b.Interrupt()
		take(t, done, "the end of the wait")
	}
}

// A goroutine that another thread has woken in vain, as a third one has heard
// the bell first, is woken by the next ringing.
func TestBellAttendHeard(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	attended := func() bool { return atomic.LoadUint32(b.word) == Attended }
	atomic.StoreUint32(b.word, Asleep)
	require.True(t, b.Attend())
	done := make(chan struct{})
	go func() {
		b.Wait(never)
		close(done)
	}()
	for range 100 {
		until(t, "the goroutine waits", attended)
		atomic.StoreUint32(b.word, Silent) // as after Ring and Hear, without a time at which the bell is rung
		b.waits.ring()
	}
	until(t, "the goroutine waits", attended)
	b.Ring()
	take(t, done, "the end of the wait")
}

// A goroutine cannot attend to a bell that lacks the eventfd for that.
func TestBellAttendWithoutEvent(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	require.NoError(t, syscall.Close(b.waits.fd))
	b.waits.fd = -1
	require.False(t, b.Attend())
	require.False(t, b.IsAttended())
}

// No number of wake-ups, and no process that fills the counter of the eventfd,
// keeps a node from being woken.
func TestBellCounter(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	counted := func() uint64 {
		var count [8]byte
		_, err := syscall.Read(b.sleeps.fd, count[:])
		require.NoError(t, err)
		return binary.NativeEndian.Uint64(count[:])
	}
	for _, full := range []bool{false, true} {
		if full {
			require.LessOrEqual(t, counted(), uint64(100), "each wake adds 1")
			_, err := syscall.Write(b.sleeps.fd, binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1))
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
	require.NoError(t, syscall.Close(b.sleeps.fd))
	require.NoError(t, syscall.Dup3(int(file.Fd()), b.sleeps.fd, syscall.O_CLOEXEC))
	defer b.close()
	for range 3 {
		b.Sleep(func() time.Duration { return MaxSleep })
		runtime.GC()
	}
	require.NoError(t, syscall.Fstat(b.sleeps.fd, &syscall.Stat_t{}))
}

func TestCheckEvent(t *testing.T) {
	b := NewBell(new(uint32))
	defer b.close()
	require.NoError(t, checkEvent(b.sleeps.fd))
	require.NoError(t, syscall.SetNonblock(b.sleeps.fd, false))
	require.ErrorIs(t, checkEvent(b.sleeps.fd), syscall.EINVAL)
	require.NoError(t, syscall.SetNonblock(b.sleeps.fd, true))
	var ends [2]int
	require.NoError(t, syscall.Pipe2(ends[:], syscall.O_NONBLOCK|syscall.O_CLOEXEC))
	defer syscall.Close(ends[0])
	defer syscall.Close(ends[1])
	require.ErrorContains(t, checkEvent(ends[1]), "refused as a bell's descriptor")
	require.ErrorIs(t, checkEvent(-1), syscall.EBADF)
}

// A bell that another thread hears while it is settled is settled, too, so that
// ringing it wakes the node.
func TestBellSettleBesideHear(t *testing.T) {
	b := NewBell(new(uint32))
	begin, heard := make(chan struct{}), make(chan bool)
	go func() {
		for range begin {
			heard <- b.Hear()
		}
	}()
	defer close(begin)
	for range 200_000 {
		atomic.StoreUint32(b.Word(), Rung)
		begin <- struct{}{}
		settled := b.Settle()
		<-heard
		require.False(t, settled && atomic.LoadUint32(b.Word()) == Silent)
	}
}
