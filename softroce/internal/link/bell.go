// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Bell wakes a node that has work to do. Threads of this and other processes
// ring it. Code in C rings it through its Word and its Event.
type Bell struct {
	memory memory
	word   *uint32
	sleeps alarm   // ends Sleep and Nap
	waits  alarm   // ends Wait
	poller *Poller // poller in which the node sleeps; nil: it sleeps in Go's netpoller

	isAwake func(uintptr) bool // argument of alarm.park in Sleep, made once
	nap     nap
	attends atomic.Bool        // whether a goroutine attends to the bell
	waiting atomic.Bool        // whether that goroutine is in Wait
	over    func() bool        // argument of Wait
	waited  func(uintptr) bool // argument of alarm.wait in Wait, made once
}

// Values of a bell's word. Ringing sets the word to Rung. If the word was
// Asleep before, the ringing thread also wakes the node: it adds to the eventfd
// that Event returns. If the word was Attended, it wakes the goroutine that
// attends to the bell, by the eventfd that WaitEvent returns.
const (
	Silent   = 0
	Rung     = 1
	Asleep   = 2
	Attended = 3
)

const bellSize = 4096

// NewBell returns a bell. If the system lacks memory that processes can share,
// local becomes the bell's word, and only this process can ring it.
func NewBell(local *uint32) *Bell {
	b := &Bell{memory: noMemory, word: local, sleeps: newAlarm(), waits: newAlarm()}
	if m, err := newMemory(bellSize); err == nil {
		b.memory, b.word = m, pointer[uint32](m, 0)
	}
	return b
}

// bellFDs is the number of descriptors of a bell.
const bellFDs = 3

// fds returns the descriptors with which another node opens the bell.
func (b *Bell) fds() []int { return []int{b.memory.fd, b.sleeps.fd, b.waits.fd} }

// openBell returns the bell of another node. It takes ownership of the
// descriptors, which are those that fds has returned there.
func openBell(fds []int) (*Bell, error) {
	b := &Bell{sleeps: alarm{fd: fds[1]}, waits: alarm{fd: fds[2]}}
	var err error
	if b.memory, err = openMemory(fds[0], bellSize); err == nil {
		b.memory.closeFD()
		b.word = pointer[uint32](b.memory, 0)
		err = cmp.Or(checkEvent(fds[1]), checkEvent(fds[2]))
	}
	if err != nil {
		b.close()
		return nil, err
	}
	return b, nil
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

// sparesAt is the offset of a number in a bell's memory that is not 0 while the
// node needs no wake-up for acknowledgements. It is in the cache line of the
// word.
const sparesAt = 8

// SpareAcks says whether the node needs no wake-up for acknowledgements. If
// another node has sent one since the last time that the node needed them, the
// bell may not have been rung: after SpareAcks(false), the caller looks for
// what has come.
func (b *Bell) SpareAcks(spare bool) {
	if b.memory.bytes == nil {
		return
	}
	var value uint32
	if spare {
		value = 1
	}
	atomic.SwapUint32(pointer[uint32](b.memory, sparesAt), value)
}

// sparesAcks reports whether the node needs no wake-up for acknowledgements.
func (b *Bell) sparesAcks() bool {
	return atomic.LoadUint32(pointer[uint32](b.memory, sparesAt)) != 0
}

// close frees the bell.
func (b *Bell) close() {
	b.memory.close()
	b.sleeps.close()
	b.waits.close()
}

// Word returns the bell's word.
func (b *Bell) Word() *uint32 { return b.word }

// Event returns the descriptor of an eventfd, or -1. A thread that rings the
// bell by setting its word, and that has found Asleep there, must also add to
// the eventfd, which wakes the node.
func (b *Bell) Event() int { return b.sleeps.fd }

// WaitEvent returns the descriptor of the eventfd to which a thread must add
// that rings the bell by setting its word, and that has found Attended there.
// It is -1 if nothing attends to the bell.
func (b *Bell) WaitEvent() int { return b.waits.fd }

// Ring rings the bell. It makes sure that the thread whose Hear returns true
// sees all that this thread wrote before.
func (b *Bell) Ring() {
	if b.IsRung() {
		return
	}
	switch atomic.SwapUint32(b.word, Rung) {
	case Asleep:
		b.Wake()
	case Attended:
		b.waits.ring()
	}
}

// Wake ends a Sleep or a Nap.
func (b *Bell) Wake() { b.sleeps.ring() }

// IsRung reports whether the bell was rung since the last Hear.
func (b *Bell) IsRung() bool { return atomic.LoadUint32(b.word) == Rung }

// Hear resets the bell and reports whether it was rung. A thread must call it
// before it looks for work.
func (b *Bell) Hear() bool { return atomic.CompareAndSwapUint32(b.word, Rung, Silent) }

// IsAsleep reports whether ringing the bell would wake a thread.
func (b *Bell) IsAsleep() bool { return atomic.LoadUint32(b.word) >= Asleep }

// Relieve makes ringing the bell wake no thread: the caller does the node's
// work, and then calls Resume. Relieve returns false if the bell is rung or no
// thread sleeps.
func (b *Bell) Relieve() bool {
	return atomic.CompareAndSwapUint32(b.word, Asleep, Silent) || atomic.CompareAndSwapUint32(b.word, Attended, Silent)
}

// Resume ends what Relieve has begun: ringing wakes the goroutine that attends
// to the bell or, without one, the sleeping node. If the bell was rung since
// the last Hear, Resume wakes it. If the node has woken by itself meanwhile,
// the word is Asleep although the node is awake: the next ringing wakes it in
// vain.
func (b *Bell) Resume() {
	switch {
	case b.Settle():
	case b.attends.Load():
		b.waits.ring()
	default:
		b.Wake()
	}
}

// Settle is Resume for a bell that was not rung since the last Hear. If it was,
// Settle changes nothing and returns false.
func (b *Bell) Settle() bool {
	for !b.settle() {
		switch atomic.LoadUint32(b.word) {
		case Rung:
			return false
		case Silent: // another thread has heard the bell since
		default:
			return true
		}
	}
	return true
}

// settle makes ringing the silent bell wake the goroutine that attends to it
// or, without one, the node. It returns false if the bell is not silent.
func (b *Bell) settle() bool {
	if b.attends.Load() && atomic.CompareAndSwapUint32(b.word, Silent, Attended) {
		if b.attends.Load() {
			return true
		}
		atomic.CompareAndSwapUint32(b.word, Attended, Silent) // the goroutine has left since
	}
	return atomic.CompareAndSwapUint32(b.word, Silent, Asleep)
}

// Attend lets the caller wait for the bell in place of the node, which sleeps
// meanwhile. The caller calls Leave afterwards. Attend returns false if another
// goroutine attends to the bell, or if the system lacks what Wait needs.
func (b *Bell) Attend() bool {
	if !b.attends.CompareAndSwap(false, true) {
		return false
	}
	if !b.waits.open() {
		b.attends.Store(false)
		return false
	}
	return true
}

// IsAttended reports whether a goroutine attends to the bell.
func (b *Bell) IsAttended() bool { return b.attends.Load() }

// Wait waits until the bell is rung or over returns true. A thread that makes
// over return true calls Interrupt afterwards. Only the goroutine that attends
// to the bell may call Wait.
func (b *Bell) Wait(over func() bool) {
	if b.over = over; b.waited == nil {
		b.waited = func(uintptr) bool {
			b.claim() // again after each wake-up, as another thread may have heard the bell first
			return b.IsRung() || b.over()
		}
	}
	b.waiting.Store(true)
	b.waits.wait(b.waited)
	b.waiting.Store(false)
}

// claim makes ringing the bell wake the goroutine that attends to it, unless
// the bell is rung.
func (b *Bell) claim() {
	for {
		switch atomic.LoadUint32(b.word) {
		case Silent:
			b.settle()
		case Asleep:
			atomic.CompareAndSwapUint32(b.word, Asleep, Attended)
		default:
			return
		}
	}
}

// Interrupt makes Wait call its function again.
func (b *Bell) Interrupt() {
	if b.waiting.Load() {
		b.waits.ring()
	}
}

// Leave ends what Attend has begun. Ringing the bell does not wake the node
// until the caller has called Resume.
func (b *Bell) Leave() {
	b.attends.Store(false)
	atomic.CompareAndSwapUint32(b.word, Attended, Silent)
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
	if !b.settle() && b.IsRung() {
		return
	}
	if d := min(due(), MaxSleep); d > 0 && b.IsAsleep() { // otherwise, a thread has relieved the node before due was called
		if b.poller != nil {
			b.poller.sleep(d)
		} else {
			if b.isAwake == nil {
				b.isAwake = func(uintptr) bool { return !b.IsAsleep() }
			}
			b.sleeps.park(d, b.isAwake)
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
		b.sleeps.park(d, b.nap.over)
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
