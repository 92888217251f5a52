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

// Bell is a node's doorbell: whoever has something for the node rings it, in this process or in another. C
// code may ring it, too, by its Word.
type Bell struct {
	memory memory
	word   *uint32
}

// Values of a bell's word. A ringer exchanges the word for Rung, and if it was Asleep wakes
// the node, which waits for the word as a futex that is shared between processes.
const (
	Silent = 0
	Rung   = 1
	Asleep = 2
)

const bellSize = 4096

// NewBell returns a bell. If there is no memory that processes can share, local is its word, and only this process can
// ring it.
func NewBell(local *uint32) *Bell {
	m, err := newMemory(bellSize)
	if err != nil {
		return &Bell{noMemory, local}
	}
	return bellIn(m)
}

// openBell returns the bell of another node, whose descriptor belongs to it from now on.
func openBell(fd int) (*Bell, error) {
	m, err := openMemory(fd, bellSize)
	if err != nil {
		return nil, err
	}
	m.closeFD()
	return bellIn(m), nil
}

func bellIn(m memory) *Bell { return &Bell{m, pointer[uint32](m, 0)} }

// Word returns the bell's word.
func (b *Bell) Word() *uint32 { return b.word }

// Ring rings the bell. What was written before is seen by whoever hears it.
func (b *Bell) Ring() {
	if atomic.LoadUint32(b.word) != Rung && atomic.SwapUint32(b.word, Rung) == Asleep {
		futex(b.word, futexWake, 1, nil)
	}
}

// Hear silences the bell, before its owner looks for what there is to do.
func (b *Bell) Hear() { atomic.SwapUint32(b.word, Silent) }

// spin is how long Wait looks at the bell before it sleeps.
const spin = 50 * time.Microsecond

// longest is how long Wait sleeps at most: a process that ends or is stopped while it rings may have changed
// the word and woken nobody, and then nobody else does.
const longest = time.Second

// Wait waits until the bell is rung, but no longer than d. It may return earlier. As long as it does not sleep, it calls poll, unless that is nil,
// and returns if poll returns true.
func (b *Bell) Wait(d time.Duration, poll func() bool) {
	if atomic.LoadUint32(b.word) == Rung {
		return
	}
	alone := runtime.GOMAXPROCS(0) == 1 // then spinning would keep the others from working
	for began := time.Now(); !alone && time.Since(began) < min(spin, d); {
		if atomic.LoadUint32(b.word) == Rung || poll != nil && poll() {
			return
		}
		// Another thread may run, of this process or of another. With runtime.Gosched, threads of this process
		// would hand the goroutine on to one another all the time.
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	if d <= 0 || !atomic.CompareAndSwapUint32(b.word, Silent, Asleep) {
		return
	}
	limit := syscall.NsecToTimespec(int64(min(d, longest)))
	futex(b.word, futexWait, Asleep, &limit)
	atomic.CompareAndSwapUint32(b.word, Asleep, Silent)
}

const (
	futexWait = 0
	futexWake = 1
)

func futex(word *uint32, op, value uintptr, limit *syscall.Timespec) {
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, value, uintptr(unsafe.Pointer(limit)), 0, 0)
}
