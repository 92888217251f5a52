// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Bell wakes a node that has work to do. Threads of this and other processes
// ring it. Code in C rings it through its Word and its Event.
type Bell struct {
	memory memory
	word   *uint32
	event  int     // eventfd that ends Sleep, or -1 if the system has none left
	poller *Poller // poller in which the node sleeps; nil: it sleeps in Go's netpoller

	// file has event, and sleeper is its connection in Go's netpoller. deadline
	// is the one that was set for it. Only Sleep and Nap use them.
	file     *os.File
	isAwake  func(uintptr) bool // argument of sleeper.Read in Sleep, made once
	nap      nap
	sleeper  syscall.RawConn // nil: the netpoller does not take the eventfd, or the node has not waited yet
	deadline time.Time
}

// Values of a bell's word. Ringing sets the word to Rung. If the word was
// Asleep before, the ringing thread also wakes the node: it adds to the
// eventfd.
const (
	Silent = 0
	Rung   = 1
	Asleep = 2
)

const bellSize = 4096

// NewBell returns a bell. If the system lacks memory that processes can share,
// local becomes the bell's word, and only this process can ring it.
func NewBell(local *uint32) *Bell {
	b := &Bell{memory: noMemory, word: local, event: -1}
	if fd, _, e := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0); e == 0 {
		b.event = int(fd)
	}
	if m, err := newMemory(bellSize); err == nil {
		b.memory, b.word = m, pointer[uint32](m, 0)
	}
	return b
}

// openBell returns the bell of another node. It takes ownership of the
// descriptors of the memory and of the eventfd.
func openBell(memory, event int) (*Bell, error) {
	m, err := openMemory(memory, bellSize)
	if err == nil {
		m.closeFD()
		err = checkEvent(event)
	}
	if err != nil {
		m.close()
		syscall.Close(event)
		return nil, err
	}
	return &Bell{memory: m, word: pointer[uint32](m, 0), event: event}, nil
}

// checkEvent returns an error if a descriptor is not a non-blocking eventfd.
func checkEvent(fd int) error {
	flags, err := control(fd, syscall.F_GETFL, 0)
	if err != nil {
		return err
	}
	kind, err := os.Readlink(fmt.Sprint("/proc/self/fd/", fd))
	if err == nil && kind != "anon_inode:[eventfd]" || flags&syscall.O_NONBLOCK == 0 {
		return fmt.Errorf("%s refused as a bell's descriptor: want an eventfd that does not block: %w", kind, syscall.EINVAL)
	}
	return nil // without /proc, its kind is not known
}

// close frees the bell.
func (b *Bell) close() {
	b.memory.close()
	if b.file != nil {
		b.file.Close()
	} else if b.event >= 0 {
		syscall.Close(b.event)
	}
}

// Word returns the bell's word.
func (b *Bell) Word() *uint32 { return b.word }

// Event returns the descriptor of an eventfd, or -1. A thread that rings the
// bell by setting its word, and that has found Asleep there, must also add to
// the eventfd, which wakes the node.
func (b *Bell) Event() int { return b.event }

// Ring rings the bell. It makes sure that the thread whose Hear returns true
// sees all that this thread wrote before.
func (b *Bell) Ring() {
	if !b.IsRung() && atomic.SwapUint32(b.word, Rung) == Asleep {
		b.wake()
	}
}

// wake ends a Sleep.
func (b *Bell) wake() {
	if b.add() != syscall.EAGAIN {
		return
	}
	var count uint64 // a process has filled the counter
	_, _, _ = syscall.Syscall(syscall.SYS_READ, uintptr(b.event), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
	b.add()
}

// add adds 1 to the eventfd.
func (b *Bell) add() syscall.Errno {
	one := uint64(1)
	_, _, e := syscall.Syscall(syscall.SYS_WRITE, uintptr(b.event), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	return e
}

// IsRung reports whether the bell was rung since the last Hear.
func (b *Bell) IsRung() bool { return atomic.LoadUint32(b.word) == Rung }

// Hear resets the bell and reports whether it was rung. A thread must call it
// before it looks for work.
func (b *Bell) Hear() bool { return atomic.CompareAndSwapUint32(b.word, Rung, Silent) }

// IsAsleep reports whether ringing the bell would wake the node.
func (b *Bell) IsAsleep() bool { return atomic.LoadUint32(b.word) == Asleep }

// Relieve makes ringing the bell not wake the sleeping node: the caller does
// the node's work in its place, and then calls Resume. It returns false if the
// node does not sleep.
func (b *Bell) Relieve() bool { return atomic.CompareAndSwapUint32(b.word, Asleep, Silent) }

// Resume ends what Relieve has begun. If the bell was rung since the last Hear,
// it wakes the node. If the node has woken by itself meanwhile, the word is
// Asleep although the node is awake: the next ringing wakes it in vain.
func (b *Bell) Resume() {
	if !atomic.CompareAndSwapUint32(b.word, Silent, Asleep) && b.IsRung() {
		b.wake()
	}
}

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
	if !atomic.CompareAndSwapUint32(b.word, Silent, Asleep) && b.IsRung() {
		return
	}
	if d := min(due(), MaxSleep); d > 0 && b.IsAsleep() { // otherwise, a thread has relieved the node before due was called
		if b.poller != nil {
			b.poller.sleep(d)
		} else {
			if b.isAwake == nil {
				b.isAwake = func(uintptr) bool { return !b.IsAsleep() }
			}
			b.park(d, b.isAwake)
		}
	}
	atomic.CompareAndSwapUint32(b.word, Asleep, Silent)
}

// Nap waits until the word at p is not value any more, but at most for d. The
// thread that changes the word must also add to the eventfd. Nap may return
// early. Meanwhile, ringing the bell does not wake the node.
func (b *Bell) Nap(d time.Duration, p *uint32, value uint32) {
	b.nap.word, b.nap.value = p, value
	switch {
	case b.nap.isOver(0):
	case b.poller != nil:
		b.poller.nap(d)
	default:
		if b.nap.over == nil {
			b.nap.over = b.nap.isOver
		}
		b.park(d, b.nap.over)
	}
}

// nap is what a Nap waits for.
type nap struct {
	word  *uint32
	value uint32
	over  func(uintptr) bool // isOver, made once
}

// isOver reports whether the word has changed.
func (n *nap) isOver(uintptr) bool { return atomic.LoadUint32(n.word) != n.value }

// park waits in Go's netpoller until f returns true, at most d. The thread
// that looks there for the node's work then also finds the goroutines of the
// program that this work makes ready, without waking another thread.
func (b *Bell) park(d time.Duration, f func(uintptr) bool) {
	if b.event < 0 {
		time.Sleep(min(d, minPause))
		return
	}
	if b.file == nil {
		b.file = os.NewFile(uintptr(b.event), "bell")
		if b.file.SetReadDeadline(time.Time{}) == nil {
			b.sleeper, _ = b.file.SyscallConn()
		}
	}
	if b.sleeper == nil {
		time.Sleep(min(d, minPause))
		return
	}
	// A deadline that is too early only makes the wait end early, and setting
	// it takes as long as the rest.
	if now := time.Now(); b.deadline.Before(now) || b.deadline.Sub(now) > d {
		b.deadline = now.Add(d)
		_ = b.file.SetReadDeadline(b.deadline)
	}
	// The netpoller reports each addition to the eventfd, so its counter need
	// not be read.
	_ = b.sleeper.Read(f)
}
