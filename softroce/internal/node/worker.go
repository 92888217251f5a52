// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
)

// Doorbell is the memory through which threads that post and poll in C notify
// the worker. They access it with C's atomic operations.
type Doorbell struct {
	// Word is the word of the node's bell if the system lacks memory that
	// processes can share.
	Word *uint32
	// Rung is the head of the list of queues with new requests.
	// engine.WorkQueue.Next links them.
	Rung *unsafe.Pointer
	// Arms counts how often threads began to wait for an event, or for a
	// completion, without doing the worker's work. Dozing is not 0 while the
	// worker waits for Arms to change. A thread that counts while Dozing is
	// not 0 wakes the worker: it adds to the bell's eventfd.
	Arms, Dozing *uint32
}

// take returns the list of queues and empties it.
func (d *Doorbell) take() unsafe.Pointer { return atomic.SwapPointer(d.Rung, nil) }

// armed returns the value of Arms.
func (d *Doorbell) armed() uint32 { return atomic.LoadUint32(d.Arms) }

// dozes reports whether the worker waits for Arms to change.
func (d *Doorbell) dozes() bool { return atomic.LoadUint32(d.Dozing) != 0 }

// worker is the goroutine that does the device's work. It runs as long as the
// process. Threads of the program that poll an empty queue also run steps of
// the work.
type worker struct {
	n       *Node
	door    Doorbell
	bell    *link.Bell
	sockets sockets // sockets of the network; nil: the network has none

	dueAt      atomic.Int64  // time at which work is due, as a time.Duration; written with the mutex held
	wakesAt    atomic.Int64  // time at which the worker's sleep ends, as a time.Duration; 0 while the worker is awake
	helps      atomic.Int64  // number of calls of help and of attend
	leaves     atomic.Bool   // whether the worker leaves the next request to the posting thread
	waits      atomic.Int64  // sum of the numbers of helps and arms when posts was last 0
	posts      atomic.Int32  // number of calls of relieve since then
	received   atomic.Uint32 // number of packets from other processes
	wokeOthers atomic.Bool   // whether Resume has woken goroutines since WokeOthers was last called
	watched    atomic.Bool   // whether functions of the program see packets; if so, help does nothing
	noNapUntil time.Duration // time until which the worker does not nap; used by the worker alone
	spins      spins         // of goroutines that attend to the bell; used by the one that does
	attends    atomic.Int64  // time at which the goroutine that attends has begun, as a time.Duration
	superseded atomic.Bool   // whether that goroutine is to park
	over       func() bool   // argument of attend; used by that goroutine
	ends       func() bool   // hasEnded, made once
}

// sockets are the sockets of the network. The worker waits for them and for its
// bell.
type sockets interface {
	// poll receives from the socket that received last. It reports whether
	// there was something.
	poll() bool
	// look receives from all sockets.
	look()
	// take receives from the sockets that were ready when the bell's Sleep
	// ended.
	take()
}

// Word returns the word of the node's bell. Threads of this process ring the
// bell through the word, as link.Bell.Ring does.
func (n *Node) Word() *uint32 { return n.worker.bell.Word() }

// Event and WaitEvent return the eventfds of the node's bell, to one of which
// its word says that a thread which rings must add.
func (n *Node) Event() int     { return n.worker.bell.Event() }
func (n *Node) WaitEvent() int { return n.worker.bell.WaitEvent() }

// work is the worker's loop. Programs pass the name of this function to goleak,
// so it must not change (see docs/softroce.md).
func (w *worker) work() {
	poll := w.bell.IsAttended // a goroutine that attends to the bell watches it
	if w.sockets != nil {
		poll = w.sockets.poll
	}
	var looked time.Duration // time of the last look at all sockets
	for {
		if now := w.n.Now(); w.sockets != nil && now-looked >= nap { // a busy socket must not delay the others
			w.sockets.look()
			looked = now
		}
		w.bell.Hear()
		w.n.mu.Lock()
		w.copyOne(anyCopy)
		w.dueAt.Store(int64(w.n.advance(w.n.Now())))
		// What a goroutine that was woken posts is its own thread's work. A
		// spinning worker would only keep a processor from it.
		leaves := w.unlock() && w.sockets == nil
		w.leaves.Store(leaves)
		helps, arms := w.helps.Load(), w.door.armed()
		spins := !leaves && !w.bell.IsAttended() && !w.copiesWait()
		if spins && w.bell.Spin(w.due(), poll) || w.doze(helps, arms) || w.copiesWait() {
			continue
		}
		w.bell.Sleep(w.rest)
		w.wakesAt.Store(0)
		if w.sockets != nil {
			w.sockets.take()
		}
	}
}

// due returns the time until work is due. It is not positive if work is due
// now.
func (w *worker) due() time.Duration { return time.Duration(w.dueAt.Load()) - w.n.Now() }

// rest returns for how long the worker sleeps, and lets other threads know.
func (w *worker) rest() time.Duration {
	for {
		due := w.dueAt.Load()
		now := w.n.Now()
		until := min(time.Duration(due), now+link.MaxSleep)
		w.wakesAt.Store(int64(until))
		if w.copiesWait() { // otherwise, step may have seen the worker awake
			return 0
		}
		if w.dueAt.Load() == due { // otherwise, step may have seen the worker awake
			return until - now
		}
	}
}

// maxAdvances limits how long a step takes.
const maxAdvances = 8

// step does the work that is due now, in a thread that is not the worker. The
// caller holds the mutex.
func (w *worker) step() {
	now := w.n.Now()
	next := w.n.advance(now)
	for range maxAdvances - 1 { // packets to this process and their answers
		if next > now {
			break
		}
		next = w.n.advance(now)
	}
	w.dueAt.Store(int64(next))
	// A worker that is awake looks at dueAt, and for copies, before it sleeps.
	if next <= now || int64(next) < w.wakesAt.Load() || w.copiesWait() && w.isAsleep() {
		w.bell.Ring() // there is more to do, or the worker sleeps for too long
	}
}

// follow does the work that is due after a call of the program, in the thread
// of the call, which holds the mutex. Where functions of the program see
// packets, the worker does that work, as it does for polling threads.
func (w *worker) follow() {
	if w.watched.Load() {
		w.bell.Ring()
		return
	}
	w.step()
}

// Help does a step of the worker in a thread of the program that has polled an
// empty queue. That is faster than waking the worker. Of the copies, such a
// thread makes those of queue pairs that complete into the queue, whose memory
// its processor has in its caches. If queue is nil, it makes any.
func (n *Node) Help(queue *engine.CompletionQueue) { n.worker.help(queue) }

func (w *worker) help(queue *engine.CompletionQueue) {
	if w.watched.Load() {
		return
	}
	w.helps.Add(1)
	if (w.bell.IsRung() || w.copiesWait()) && w.n.mu.TryLock() {
		w.hear(w.copyOne(func(t *engine.LateCopy) bool { return queue == nil || t.IsFor(queue) }))
		w.unlock()
	}
	if w.sockets != nil { // afterwards, as it delays what the program has posted by a system call
		w.sockets.poll()
	}
}

// hear does a step if the bell was rung, or if the caller has made a copy. The
// caller holds the mutex. Where functions of the program see packets, hear
// leaves the work to the worker, as the caller may hold a lock for which such a
// function waits.
func (w *worker) hear(copied bool) {
	switch {
	case !w.watched.Load():
		if w.bell.Hear() || copied {
			w.step()
		}
	case copied:
		w.bell.Ring()
	}
}

// unlock unlocks the mutex after work. If that has woken goroutines, it lets
// them run: as long as this one keeps its processor, another thread would have
// to wake for them.
func (w *worker) unlock() (woke bool) {
	woke = w.n.woke
	w.n.woke = false
	w.n.mu.Unlock()
	if woke {
		runtime.Gosched()
	}
	return woke
}

// Relieve prevents a call that is about to post requests from waking the
// worker: it is faster to do the work in the thread of that call, in Resume.
// Relieve returns false if the worker is awake and waits for requests, or if
// the program posts requests without waiting for completions, so that the
// worker can do its work at the same time.
func (n *Node) Relieve() bool { return n.worker.relieve() }

// maxRelieved is the number of posts in a row, without a wait in between, that
// relieve the worker. A long message of a stream is a few posts; if the worker
// woke for the last of them, it would work against the posting thread.
const maxRelieved = 8

func (w *worker) relieve() bool {
	dozes := w.door.dozes()
	if w.watched.Load() || !w.leaves.Load() && !dozes && !w.bell.IsAsleep() {
		return false
	}
	if waits := w.waited(); w.waits.Swap(waits) != waits {
		w.posts.Store(0)
	}
	if w.posts.Add(1) <= maxRelieved {
		return w.bell.Relieve() || dozes || w.leaves.Load()
	}
	if dozes {
		w.n.Park() // the worker must not leave the work to the program
	}
	return false
}

// waited returns a number that changes when the program waits for completions.
func (w *worker) waited() int64 { return w.helps.Load() + int64(w.door.armed()) }

// Resume does the work of requests that were posted since Relieve, with one of
// the copies that it takes. If the worker is awake and at work, it does that
// work, too.
func (n *Node) Resume() {
	w := &n.worker
	for range maxHeard {
		if w.bell.IsRung() && n.lockUnlessAwake() {
			left := n.copies.Left()
			w.hear(false)
			if n.copies.Left() != left {
				w.hear(w.copyOne(func(t *engine.LateCopy) bool { return t.Number() > left }))
			}
			if n.woke { // they run when this goroutine waits, which is soon
				w.wokeOthers.Store(true)
				n.woke = false
			}
			n.mu.Unlock()
		}
		if !w.isAsleep() && !w.bell.IsAttended() || w.bell.Settle() {
			return
		}
		if w.due() <= 0 || w.oversleeps() || w.watched.Load() {
			break // there is work for the worker
		}
	}
	w.bell.Resume()
}

// maxHeard is how often Resume hears the bell before it wakes a thread. A peer
// that a step has woken may answer before Resume has returned.
const maxHeard = 3

// Silence keeps packets from other processes from waking a thread. The caller
// does the device's work until it calls Resume. Where functions of the program
// see packets, Silence does nothing.
func (n *Node) Silence() {
	if w := &n.worker; !w.watched.Load() {
		w.bell.Relieve()
	}
}

// MayAttend reports whether Attend would do something now. It does nothing if
// another goroutine attends, if functions of the program see packets, or if the
// program posts requests without waiting for completions, so that the worker
// does its work at the same time.
func (n *Node) MayAttend() bool {
	w := &n.worker
	return w.sockets == nil && !w.watched.Load() && !w.bell.IsAttended() && (w.posts.Load() <= maxRelieved || w.waits.Load() != w.waited())
}

// Attend lets a goroutine that waits for a completion do the device's work in
// place of the worker until over returns true: a message from another process
// then wakes only that goroutine, and not the worker first. Before it parks,
// the goroutine watches the bell for the time spin: after each step, as the
// worker does, and at first if that has lately paid. A thread that makes over
// return true calls Interrupt afterwards. Attend returns false at once if
// MayAttend does, and early if there is work for the worker, or if another
// goroutine calls Supersede. The caller then parks until over returns true: on
// one processor, the worker could not run if the caller attended again.
func (n *Node) Attend(over func() bool, spin time.Duration) bool { return n.worker.attend(over, spin) }

// Park tells the worker that the caller waits for a completion, and does none
// of the worker's work.
func (n *Node) Park() {
	w := &n.worker
	atomic.AddUint32(w.door.Arms, 1)
	if w.door.dozes() {
		w.bell.Wake()
	}
}

// longAttended is the time after which Supersede makes a goroutine park.
const longAttended = 10 * time.Millisecond

// Supersede makes a goroutine that has attended for long, and so seems to wait
// for what does not come soon, park: the waits of the caller are short.
func (n *Node) Supersede() {
	w := &n.worker
	if w.bell.IsAttended() && n.Now()-time.Duration(w.attends.Load()) > longAttended && !w.superseded.Swap(true) {
		w.bell.Interrupt()
	}
}

// hasEnded reports whether the goroutine that attends has to stop.
func (w *worker) hasEnded() bool { return w.superseded.Load() || w.over() }

// Interrupt makes Attend call its function again.
func (n *Node) Interrupt() { n.worker.bell.Interrupt() }

func (w *worker) attend(over func() bool, spin time.Duration) bool {
	if !w.n.MayAttend() || !w.bell.Attend() {
		return false
	}
	if w.ends == nil {
		w.ends = w.hasEnded
	}
	w.over = over
	w.helps.Add(1)
	began := w.n.Now()
	w.attends.Store(int64(began))
	w.superseded.Store(false)
	maySpin, worked, spun := runtime.GOMAXPROCS(0) > 1, false, false
	idleSince, idle := began, false
	for !w.hasEnded() {
		if w.bell.IsRung() || w.copiesWait() {
			if idle {
				w.spins.note(w.n.Now()-idleSince, spin)
			}
			if !w.attendStep(over) {
				break
			}
			idleSince, idle, worked = w.n.Now(), false, true
			continue
		}
		idle = true
		if left := spin - (w.n.Now() - idleSince); maySpin && left > 0 && (worked || w.spins.pay()) {
			spun = true
			w.bell.Relieve()
			w.bell.Spin(left, w.ends)
			continue
		}
		w.bell.Wait(w.ends)
	}
	isOver := over()
	now := w.n.Now()
	if idle {
		w.spins.note(now-idleSince, spin)
	}
	yields := spun && w.spins.yields(now)
	w.bell.Leave()
	w.n.Resume()
	if yields {
		runtime.Gosched()
	}
	return isOver
}

// attendStep does a step in the goroutine that attends to the bell. It returns
// false if the worker must do the rest.
func (w *worker) attendStep(over func() bool) bool {
	w.n.mu.Lock()
	w.hear(!w.watched.Load() && w.copyOne(anyCopy))
	leaves := w.watched.Load() || w.oversleeps()
	woke := w.n.woke
	w.n.woke = false
	w.n.mu.Unlock()
	switch {
	case woke && over(): // they run when this goroutine waits
		w.wokeOthers.Store(true)
	case woke:
		runtime.Gosched()
	}
	return !leaves
}

// oversleeps reports whether something is due later, but before the worker's
// sleep ends, so that step has rung the bell for the worker.
func (w *worker) oversleeps() bool { return w.due() > 0 && w.dueAt.Load() < w.wakesAt.Load() }

// Received returns the number of packets that have come from other processes.
func (n *Node) Received() uint32 { return n.worker.received.Load() }

// WokeOthers reports whether Resume has woken goroutines of the program since
// the last call.
func (n *Node) WokeOthers() bool {
	w := &n.worker
	return w.wokeOthers.Load() && w.wokeOthers.Swap(false)
}

// lockUnlessAwake locks the mutex, unless another thread has locked it and the
// worker is awake: it sees then that the bell is rung.
func (n *Node) lockUnlessAwake() bool {
	if n.mu.TryLock() {
		return true
	}
	if w := &n.worker; !w.isAsleep() && !w.door.dozes() {
		return false
	}
	n.lockSoon()
	return true
}

// isAsleep reports whether the worker sleeps, even if ringing the bell would
// not wake it.
func (w *worker) isAsleep() bool { return w.wakesAt.Load() != 0 }

const (
	// nap is the longest time that the worker sleeps while polling threads
	// do its work. It is also the interval at which a busy worker looks at
	// all sockets.
	nap = time.Millisecond
	// noNapTime is the time for which the worker does not nap after threads
	// have left work undone, or have begun to wait without doing it. Threads
	// that polled, and poll no longer, may wait for something other than a
	// completion, such as memory that a peer writes.
	noNapTime = 32 * nap
)

// doze lets the worker nap while threads that poll, or attend to the bell, do
// its work. It returns when work is due, when these threads have left work
// undone, or when one waits without doing the work. helps and arms are the
// counts from before the worker ran out of work. helped reports whether a
// thread has done work since then; if not, the worker sleeps next, also beside
// a goroutine that attends and gets nothing to do.
func (w *worker) doze(helps int64, arms uint32) (helped bool) {
	if w.n.Now() < w.noNapUntil {
		return false
	}
	for attended := w.bell.IsAttended(); (attended || w.helps.Load() != helps) && w.door.armed() == arms; attended = false {
		d := w.due()
		if d <= 0 {
			break
		}
		before, oldest := helps, w.n.copies.Oldest()
		helps = w.helps.Load()
		helped = helped || helps != before
		w.nap(arms, min(d, nap))
		if w.door.armed() != arms { // so that not each wait ends a nap
			w.noNapUntil = w.n.Now() + noNapTime
		}
		if w.sockets != nil { // polling threads receive from one socket only
			w.sockets.look()
		}
		// A thread that polls does the work soon, even if it has to wait for
		// the worker's processor. If the same copy waits for a whole nap, no
		// thread polls for it.
		helps := w.helps.Load()
		if w.bell.Waits() && w.helps.Load() == helps || d >= nap && oldest != 0 && oldest == w.n.copies.Oldest() {
			w.noNapUntil = w.n.Now() + noNapTime
			break
		}
	}
	return helped
}

// nap waits until a thread waits without doing the work, for limit at most.
// arms is the count from before. nap does not wait if the bell is rung, as a
// thread that rang it may have left the work to the worker: see
// lockUnlessAwake.
func (w *worker) nap(arms uint32, limit time.Duration) {
	atomic.StoreUint32(w.door.Dozing, 1)
	if !w.bell.IsRung() {
		w.bell.Nap(limit, w.door.Arms, arms)
	}
	atomic.StoreUint32(w.door.Dozing, 0)
}
