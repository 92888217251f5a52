// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Bell wakes a node that has work to do. Threads of this and other processes
// ring it. Code in C rings it through its Word.
type Bell struct {
	memory memory
	word   *uint32
	poller *Poller // poller in which the node sleeps; nil: it sleeps on the word as a futex
}

// Values of a bell's word. Ringing sets the word to Rung. If the word was
// Asleep before, the ringing thread also wakes the node: it wakes the word, a
// futex shared between processes, or writes to the eventfd of the Poller.
const (
	Silent = 0
	Rung   = 1
	Asleep = 2
)

const bellSize = 4096

// NewBell returns a bell. If the system lacks memory that processes can share,
// local becomes the bell's word, and only this process can ring it.
func NewBell(local *uint32) *Bell {
	m, err := newMemory(bellSize)
	if err != nil {
		return &Bell{memory: noMemory, word: local}
	}
	return bellIn(m)
}

// openBell returns the bell of another node. It takes ownership of the
// descriptor.
func openBell(fd int) (*Bell, error) {
	m, err := openMemory(fd, bellSize)
	if err != nil {
		return nil, err
	}
	m.closeFD()
	return bellIn(m), nil
}

// bellIn returns the bell in shared memory.
func bellIn(m memory) *Bell { return &Bell{memory: m, word: pointer[uint32](m, 0)} }

// Word returns the bell's word.
func (b *Bell) Word() *uint32 { return b.word }

// Ring rings the bell. It makes sure that the thread whose Hear returns true
// sees all that this thread wrote before.
func (b *Bell) Ring() {
	if b.IsRung() || atomic.SwapUint32(b.word, Rung) != Asleep {
		return
	}
	if b.poller != nil {
		b.poller.wake()
	} else {
		futex(b.word, futexWake, 1, nil)
	}
}

// IsRung reports whether the bell was rung since the last Hear.
func (b *Bell) IsRung() bool { return atomic.LoadUint32(b.word) == Rung }

// Hear resets the bell and reports whether it was rung. A thread must call it
// before it looks for work.
func (b *Bell) Hear() bool { return atomic.CompareAndSwapUint32(b.word, Rung, Silent) }

// maxSpin limits the time for which Spin and Waits watch the bell.
const maxSpin = 50 * time.Microsecond

// MaxSleep limits a Sleep. A process may end, or be stopped, after it has set
// the word to Rung and before it wakes the node. No other process wakes the
// node after that, as each finds the bell already rung.
const MaxSleep = time.Second

// Spin watches the bell for a short time, at most d. Meanwhile it also calls
// poll, unless that is nil. It returns true once the bell is rung or poll
// returns true.
func (b *Bell) Spin(d time.Duration, poll func() bool) bool {
	if b.IsRung() {
		return true
	}
	if runtime.GOMAXPROCS(0) == 1 { // spinning would take the only processor from other threads
		return false
	}
	for began := time.Now(); time.Since(began) < min(maxSpin, d); {
		if b.IsRung() || poll != nil && poll() {
			return true
		}
		// Let another thread run, of this or another process. With
		// runtime.Gosched instead, this process's threads would keep handing
		// this goroutine on to one another.
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return false
}

// Waits watches the bell for a short time. It returns true if the bell is rung
// all the time, so that no thread has called Hear.
func (b *Bell) Waits() bool {
	for began := time.Now(); b.IsRung(); {
		if time.Since(began) >= maxSpin {
			return true
		}
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return false
}

// Sleep waits until the bell is rung, but at most for the time that due
// returns. It may return early. It calls due at a time at which ringing the
// bell already ends the Sleep. With a Poller, Sleep also ends when a socket is
// ready.
func (b *Bell) Sleep(due func() time.Duration) {
	if !atomic.CompareAndSwapUint32(b.word, Silent, Asleep) {
		return
	}
	if d := min(due(), MaxSleep); d > 0 {
		if b.poller != nil {
			b.poller.sleep(d)
		} else {
			limit := syscall.NsecToTimespec(int64(d))
			futex(b.word, futexWait, Asleep, &limit)
		}
	}
	atomic.CompareAndSwapUint32(b.word, Asleep, Silent)
}

const (
	futexWait = 0
	futexWake = 1
)

// futex calls futex(2) on a word that processes share.
func futex(word *uint32, op, value uintptr, limit *syscall.Timespec) {
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, value, uintptr(unsafe.Pointer(limit)), 0, 0)
}
