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

// Bell is a node's doorbell. A thread that has something for the node, in this
// process or in another, rings it. C code may ring it, too, by its Word.
type Bell struct {
	memory memory
	word   *uint32
	poller *Poller // the poller that the node sleeps in; nil if it waits for the word
}

// Values of a bell's word. A ringer exchanges the word for Rung. If the word
// was Asleep, the ringer wakes the node, which waits for the word as a futex
// shared between processes, or in a Poller.
const (
	Silent = 0
	Rung   = 1
	Asleep = 2
)

const bellSize = 4096

// NewBell returns a bell. If there is no memory that processes can share, local
// is its word, and only this process can ring it.
func NewBell(local *uint32) *Bell {
	m, err := newMemory(bellSize)
	if err != nil {
		return &Bell{memory: noMemory, word: local}
	}
	return bellIn(m)
}

// openBell returns the bell of another node. It takes over the descriptor.
func openBell(fd int) (*Bell, error) {
	m, err := openMemory(fd, bellSize)
	if err != nil {
		return nil, err
	}
	m.closeFD()
	return bellIn(m), nil
}

func bellIn(m memory) *Bell { return &Bell{memory: m, word: pointer[uint32](m, 0)} }

// Word returns the bell's word.
func (b *Bell) Word() *uint32 { return b.word }

// Ring rings the bell. The thread that hears it sees all earlier writes of the
// ringer.
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

// IsRung reports whether the bell was rung and not heard yet.
func (b *Bell) IsRung() bool { return atomic.LoadUint32(b.word) == Rung }

// Hear silences the bell and reports whether it was rung. A thread calls it
// before it looks for work.
func (b *Bell) Hear() bool { return atomic.CompareAndSwapUint32(b.word, Rung, Silent) }

// spin limits the time for which Spin watches the bell.
const spin = 50 * time.Microsecond

// longest limits a Sleep. A process that ends or is stopped while it rings may
// have changed the word without waking the node, and later ringers do not wake
// it then.
const longest = time.Second

// Spin watches the bell for a short time, no longer than d. It calls poll, if
// not nil, in between. It returns true once the bell was rung or poll returns
// true.
func (b *Bell) Spin(d time.Duration, poll func() bool) bool {
	if b.IsRung() {
		return true
	}
	if runtime.GOMAXPROCS(0) == 1 { // spinning would keep the others from working
		return false
	}
	for began := time.Now(); time.Since(began) < min(spin, d); {
		if b.IsRung() || poll != nil && poll() {
			return true
		}
		// Another thread may run, of this or another process. With
		// runtime.Gosched, threads of this process would keep handing the
		// goroutine on to one another.
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return false
}

// Waits reports whether the bell was rung and stays unheard for a short time.
func (b *Bell) Waits() bool {
	for began := time.Now(); b.IsRung(); {
		if time.Since(began) >= spin {
			return true
		}
		syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return false
}

// Sleep waits until the bell is rung, but no longer than due returns. It calls
// due once a ring can no longer be missed. It may return early. With a Poller,
// it also waits for the sockets.
func (b *Bell) Sleep(due func() time.Duration) {
	if !atomic.CompareAndSwapUint32(b.word, Silent, Asleep) {
		return
	}
	if d := min(due(), longest); d > 0 {
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

func futex(word *uint32, op, value uintptr, limit *syscall.Timespec) {
	syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, value, uintptr(unsafe.Pointer(limit)), 0, 0)
}
