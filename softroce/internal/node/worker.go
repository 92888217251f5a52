// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/softroce/internal/link"
)

// Doorbell is the memory by which the threads that post and poll in C tell the
// worker of it. They use it as C's atomic operations do.
type Doorbell struct {
	// Word is the word of the node's bell if the system has no memory that
	// processes can share.
	Word *uint32
	// Rung lists the queues with new requests; engine.WorkQueue.Next links
	// them.
	Rung *unsafe.Pointer
	// Arms counts the times that a completion queue was armed. A thread
	// that adds to it while Dozing is not 0 wakes a thread that waits for
	// it as a futex of this process.
	Arms, Dozing *uint32
}

// take takes the list of queues.
func (d *Doorbell) take() unsafe.Pointer { return atomic.SwapPointer(d.Rung, nil) }

// armed returns how often a queue was armed.
func (d *Doorbell) armed() uint32 { return atomic.LoadUint32(d.Arms) }

// doze waits until a queue has been armed since armed returned arms, but not
// longer than limit.
func (d *Doorbell) doze(arms uint32, limit time.Duration) {
	const waitPrivate = 0 | 128 // FUTEX_WAIT | FUTEX_PRIVATE_FLAG
	t := syscall.NsecToTimespec(int64(limit))
	atomic.StoreUint32(d.Dozing, 1)
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(d.Arms)), waitPrivate, uintptr(arms), uintptr(unsafe.Pointer(&t)), 0, 0)
	atomic.StoreUint32(d.Dozing, 0)
}

// worker is the goroutine that does what is due on the node, for as long as the
// process lives. Threads of the program that poll an empty queue help it.
type worker struct {
	n       *Node
	door    Doorbell
	bell    *link.Bell
	sockets sockets // nil: the network has none

	looks   atomic.Int64  // when something is due, as a time.Duration; written with the mutex
	helps   atomic.Int64  // calls of help: each ran a step or found that none was due
	watched atomic.Bool   // functions of the program see packets, and help does nothing
	wary    time.Duration // until when the worker does not nap; its own
}

// sockets are what a worker waits for besides its bell.
type sockets interface {
	// poll receives from the socket that received last, and reports whether
	// it has received something.
	poll() bool
	// look receives from all sockets.
	look()
	// take receives from the sockets that had something when the bell's
	// Sleep ended.
	take()
	// event returns the eventfd that ends the bell's Sleep.
	event() int
}

// Word returns the word of the node's bell. Threads of this process ring the
// bell by it as link.Bell.Ring does.
func (n *Node) Word() *uint32 { return n.worker.bell.Word() }

// Event returns the eventfd that wakes the worker, or -1 if a futex does.
func (n *Node) Event() int {
	if n.worker.sockets == nil {
		return -1
	}
	return n.worker.sockets.event()
}

// work is the goroutine. docs/softroce.md has its name.
func (w *worker) work() {
	var poll func() bool
	if w.sockets != nil {
		poll = w.sockets.poll
	}
	var looked time.Duration // when at all sockets
	for {
		if now := w.n.Now(); w.sockets != nil && now-looked >= nap { // a busy socket must not keep the others waiting
			w.sockets.look()
			looked = now
		}
		w.bell.Hear()
		w.n.mu.Lock()
		w.looks.Store(int64(w.n.advance(w.n.Now())))
		w.n.mu.Unlock()
		helps, arms := w.helps.Load(), w.door.armed()
		if w.bell.Spin(w.due(), poll) || w.doze(helps, arms) {
			continue
		}
		w.bell.Sleep(w.due)
		if w.sockets != nil {
			w.sockets.take()
		}
	}
}

// due returns how long nothing will be due.
func (w *worker) due() time.Duration { return time.Duration(w.looks.Load()) - w.n.Now() }

// step does what is due in place of the worker. The caller has the mutex.
func (w *worker) step() {
	now := w.n.Now()
	next := w.n.advance(now)
	if before := time.Duration(w.looks.Swap(int64(next))); next < before || next <= now {
		w.bell.Ring() // the worker sleeps for too long, or there is more to do
	}
}

// Help does what is due, in the thread of a program that has polled a queue in
// vain. The completion that the thread waits for is there sooner than if the
// worker had to wake up.
func (n *Node) Help() { n.worker.help() }

func (w *worker) help() {
	if w.watched.Load() {
		return
	}
	w.helps.Add(1)
	if w.sockets != nil {
		w.sockets.poll()
	}
	if w.bell.IsRung() && w.n.mu.TryLock() {
		if w.bell.Hear() {
			w.step()
		}
		w.n.mu.Unlock()
	}
}

const (
	// nap is how long the worker naps at a time while other threads help. A
	// busy worker looks at all sockets that often.
	nap = time.Millisecond
	// wariness is how long the worker does not nap after threads that
	// helped have left something undone. They spin for something else than
	// a completion by then, such as memory that a peer writes.
	wariness = 32 * nap
)

// doze naps while polling threads help, until something is due or left undone,
// or a program arms a queue to wait for an event. helps and arms are the counts
// that the worker saw before it had nothing to do. doze reports whether a
// thread has helped since then.
func (w *worker) doze(helps int64, arms uint32) (helped bool) {
	if w.n.Now() < w.wary {
		return false
	}
	for w.helps.Load() != helps && w.door.armed() == arms {
		d := w.due()
		if d <= 0 {
			break
		}
		helps, helped = w.helps.Load(), true
		w.door.doze(arms, min(d, nap))
		if w.sockets != nil { // a thread that helps looks at one socket
			w.sockets.look()
		}
		if w.bell.Waits() {
			w.wary = w.n.Now() + wariness
			break
		}
	}
	return helped
}
