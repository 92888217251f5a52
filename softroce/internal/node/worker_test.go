// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// fakeSockets are sockets on which poll calls a function.
type fakeSockets struct {
	sockets
	polled func()
}

func (f fakeSockets) poll() bool {
	f.polled()
	return false
}

// What the program has posted leaves before its thread receives, which takes a
// system call even if there is nothing.
func TestHelpSendsFirst(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	polled := 0
	w.sockets = fakeSockets{polled: func() {
		polled++
		require.False(t, w.bell.IsRung())
	}}
	n.Help(nil)
	w.bell.Ring()
	n.Help(nil)
	require.Equal(t, 2, polled)
}

// arm does what C does when a program arms a queue.
func (w *wired) arm() {
	door := &w.worker.door
	atomic.AddUint32(door.Arms, 1)
	if atomic.LoadUint32(door.Dozing) != 0 {
		one := uint64(1)
		_, _, _ = syscall.Syscall(syscall.SYS_WRITE, uintptr(w.Event()), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	}
}

// A thread that has polled in vain does the work of a node whose worker does
// not, and only if there is some.
func TestHelp(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	work := func() (done bool) {
		w.bell.Ring()
		n.Help(nil)
		return !w.bell.IsRung()
	}
	n.Help(nil)
	require.EqualValues(t, 1, w.helps.Load())
	require.Zero(t, w.dueAt.Load(), "the bell was not rung")
	require.True(t, work())
	require.EqualValues(t, 2, w.helps.Load())
	require.Equal(t, never, time.Duration(w.dueAt.Load()))

	n.mu.Lock() // another thread does the work
	require.False(t, work())
	n.mu.Unlock()
	require.True(t, work())

	for _, seen := range []func(){
		func() { n.path.faults = func(*wire.Packet) Fault { return Fault{} } },
		func() { n.path.captures = []*capture{{}} },
	} {
		seen() // by a function of the program
		n.path.watch()
		helped := w.helps.Load()
		require.False(t, work())
		require.Equal(t, helped, w.helps.Load())
		n.path.faults, n.path.captures = nil, nil
		n.path.watch()
		require.True(t, work())
	}

	// The worker looks again when something is due before its sleep ends.
	n.mu.Lock()
	n.path.delayed = queue{{at: n.Now() + time.Hour}}
	n.mu.Unlock()
	require.True(t, work(), "the worker is awake, and looks before it sleeps")
	require.InDelta(t, time.Hour, w.due(), float64(time.Minute))
	w.wakesAt.Store(int64(n.Now() + time.Minute))
	require.True(t, work(), "the worker wakes before that")
	w.wakesAt.Store(int64(never))
	require.False(t, work())
}

// The thread of a call does what is due at the end of the call. It wakes the
// worker only if the worker would sleep for too long.
func TestUnlockDoesWhatIsDue(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	n.Lock()
	require.False(t, w.bell.IsRung())
	n.Unlock()
	require.Equal(t, never, time.Duration(w.dueAt.Load()))
	require.False(t, w.bell.IsRung())

	require.Equal(t, link.MaxSleep, w.rest())
	delay := func() {
		n.Lock()
		n.path.delayed = queue{{at: n.Now() + time.Hour}}
		n.Unlock()
		require.InDelta(t, time.Hour, w.due(), float64(time.Minute))
	}
	delay()
	require.False(t, w.bell.IsRung(), "the worker wakes before that")
	w.wakesAt.Store(int64(never))
	delay()
	require.True(t, w.bell.Hear(), "the worker would sleep for too long")
	w.dueAt.Store(int64(n.Now()))
	require.LessOrEqual(t, w.rest(), time.Duration(0), "the worker sleeps until something is due")

	// The worker alone passes packets to functions of the program.
	n.Lock()
	n.path.faults = func(*wire.Packet) Fault { return Fault{} }
	n.path.watch()
	n.path.delayed = nil
	due := w.dueAt.Load()
	n.Unlock()
	require.Equal(t, due, w.dueAt.Load())
	require.True(t, w.bell.Hear())
}

// A thread that posts a request does the work of a worker that sleeps, unless
// it posts one request after the other.
func TestRelieve(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	word := w.bell.Word()
	sleep := func() {
		atomic.StoreUint32(word, link.Asleep)
		w.wakesAt.Store(int64(never))
		n.arm()
	}
	// post does what datapath.PostSend does.
	post := func() (relieved bool) {
		relieved = n.Relieve()
		w.bell.Ring()
		if relieved {
			n.Resume()
		}
		return relieved
	}
	require.False(t, post(), "the worker is awake")
	require.True(t, w.bell.Hear())

	due := w.dueAt.Load()
	for range 10 {
		sleep()
		w.dueAt.Store(0)
		require.True(t, post())
		require.Equal(t, never, time.Duration(w.dueAt.Load()), "the work is done")
		require.EqualValues(t, link.Asleep, *word)
	}

	sleep()
	require.True(t, n.Relieve())
	require.False(t, n.WokeOthers())
	n.woke = true // as the work does if a goroutine waits for a completion
	w.bell.Ring()
	n.Resume()
	require.True(t, n.WokeOthers())
	require.False(t, n.WokeOthers(), "they were asked for before")

	sleep()
	for range maxRelieved {
		require.True(t, post())
	}
	require.False(t, post(), "the program does not wait")
	require.True(t, w.bell.IsRung(), "the worker wakes")

	sleep()
	require.True(t, n.Relieve())
	w.bell.Ring()
	require.True(t, w.bell.Hear())
	n.Resume()
	require.EqualValues(t, link.Asleep, *word, "another thread did the work")

	w.dueAt.Store(due)
	sleep()
	n.path.faults = func(*wire.Packet) Fault { return Fault{} }
	n.path.watch()
	require.False(t, post(), "functions of the program see packets")
	n.path.faults = nil
	n.path.watch()
}

// answering is a network on which a peer answers what a step has sent before
// the step is over, so many times.
type answering struct {
	network
	bell     *link.Bell
	times    int
	busy     bool // whether there is always more to receive
	received int
}

func (a *answering) wake() {
	if a.network.wake(); a.times > 0 {
		a.times--
		a.bell.Ring()
	}
}

func (a *answering) receive() (more bool) {
	a.received++
	return a.busy
}

// An answer that comes while a thread does the work of its request is the work
// of the same thread, which does not wake the worker for it, unless answers do
// not stop, or there is more to do.
func TestResumeHearsAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answers  int
		busy     bool
		late     bool // whether there is something to do before the worker wakes
		received int
		woken    uint64
	}{
		"no answer":               {0, false, false, 1, 0},
		"an answer":               {1, false, false, 2, 0},
		"an answer to the answer": {2, false, false, 3, 0},
		"answers without end":     {100, false, false, maxHeard, 1},
		"more to do":              {0, true, false, maxAdvances, 1},
		"something to do later":   {0, false, true, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := newWired(t)
			n.program.late = tt.late
			w := &n.worker
			net := &answering{network: n.network, bell: w.bell, times: tt.answers, busy: tt.busy}
			n.network = net
			atomic.StoreUint32(w.bell.Word(), link.Asleep)
			w.wakesAt.Store(int64(time.Hour))
			require.True(t, n.Relieve())
			w.bell.Ring()
			n.Resume()
			require.Equal(t, tt.received, net.received)
			var woken uint64 // how often the worker was
			_, _, _ = syscall.Syscall(syscall.SYS_READ, uintptr(n.Event()), uintptr(unsafe.Pointer(&woken)), unsafe.Sizeof(woken))
			require.Equal(t, tt.woken, woken)
			require.Equal(t, tt.woken > 0, w.bell.IsRung(), "the worker hears it")
		})
	}
}

// The work of a request is done even if its thread finds the mutex locked.
func TestRelieveWaits(t *testing.T) {
	for name, rest := range map[string]func(w *worker){
		"the worker sleeps":   func(w *worker) { w.wakesAt.Store(int64(never)) },
		"the worker naps":     func(w *worker) { atomic.StoreUint32(w.door.Dozing, 1) },
		"the worker is awake": nil,
	} {
		t.Run(name, func(t *testing.T) {
			n := newWired(t)
			w := &n.worker
			atomic.StoreUint32(w.bell.Word(), link.Asleep)
			require.True(t, n.Relieve())
			w.bell.Ring()
			asleep := rest != nil
			if asleep {
				rest(w)
			}
			n.mu.Lock()
			done := make(chan struct{})
			go func() {
				n.Resume()
				close(done)
			}()
			if !asleep { // it will hear the bell
				<-done
				require.True(t, w.bell.IsRung())
			}
			n.mu.Unlock()
			<-done
			require.Equal(t, !asleep, w.bell.IsRung())
		})
	}
}

// A thread that relieves the worker does not pass packets to functions that the
// program has set meanwhile.
func TestRelieveIsNotWatched(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	atomic.StoreUint32(w.bell.Word(), link.Asleep)
	w.wakesAt.Store(int64(never))
	require.True(t, n.Relieve())
	w.bell.Ring()
	n.path.faults = func(*wire.Packet) Fault { return Fault{} }
	n.path.watch()
	n.Resume()
	require.True(t, w.bell.IsRung(), "the worker does the work")
	require.Zero(t, w.dueAt.Load())
}

// A goroutine that attends to the bell does the worker's work until its wait is
// over.
func TestAttend(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.sockets = nil // a machine's network has none
	atomic.StoreUint32(w.bell.Word(), link.Asleep)
	w.wakesAt.Store(int64(never))
	var over atomic.Bool
	attended := make(chan bool)
	go func() { attended <- n.Attend(over.Load, time.Millisecond) }()
	isHeard := func() bool { return atomic.LoadUint32(w.bell.Word()) == link.Attended }
	for range 10 {
		require.Eventually(t, isHeard, time.Minute, time.Microsecond)
		require.False(t, n.MayAttend())
		require.False(t, n.Attend(over.Load, 0), "another goroutine attends")
		w.bell.Ring()
	}
	require.Eventually(t, isHeard, time.Minute, time.Microsecond)
	over.Store(true)
	n.Interrupt()
	require.True(t, <-attended)
	require.EqualValues(t, link.Asleep, *w.bell.Word(), "ringing wakes the worker again")
	require.Equal(t, never, time.Duration(w.dueAt.Load()))
	require.True(t, n.MayAttend())
	w.waits.Store(w.waited())
	w.posts.Store(maxRelieved + 1)
	require.False(t, n.MayAttend(), "the program posts without waiting")
	n.arm()
	require.True(t, n.MayAttend(), "it has waited since")
}

// A goroutine leaves work to the worker if something is due before that wakes,
// and if functions of the program see packets.
func TestAttendLeavesToWorker(t *testing.T) {
	for name, leave := range map[string]func(n *wired){
		"something is due": func(n *wired) { n.path.delayed = queue{{at: n.Now() + time.Hour}} },
		"watched": func(n *wired) {
			n.path.faults = func(*wire.Packet) Fault { return Fault{} }
			n.path.watch()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newWired(t)
			w := &n.worker
			w.sockets = nil
			atomic.StoreUint32(w.bell.Word(), link.Asleep)
			w.wakesAt.Store(int64(never))
			attended := make(chan bool)
			go func() { attended <- n.Attend(func() bool { return false }, 0) }()
			require.Eventually(t, func() bool { return atomic.LoadUint32(w.bell.Word()) == link.Attended }, time.Minute, time.Microsecond)
			n.mu.Lock()
			leave(n)
			n.mu.Unlock()
			w.bell.Ring()
			require.False(t, <-attended, "a goroutine that tried again would keep the worker from its processor")
			require.True(t, w.bell.IsRung(), "the worker wakes")
		})
	}
}

// A goroutine that has attended for long parks when another one asks for it.
func TestSupersede(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.sockets = nil
	atomic.StoreUint32(w.bell.Word(), link.Asleep)
	w.wakesAt.Store(int64(never))
	n.Supersede() // nothing attends
	attended := make(chan bool, 1)
	go func() { attended <- n.Attend(func() bool { return false }, 0) }()
	require.Eventually(t, func() bool { return atomic.LoadUint32(w.bell.Word()) == link.Attended }, time.Minute, time.Microsecond)
	w.attends.Store(int64(n.Now() + time.Hour))
	n.Supersede()
	require.False(t, w.superseded.Load(), "it has attended for a short time")
	w.attends.Store(int64(n.Now() - longAttended - 1))
	n.Supersede()
	require.False(t, <-attended)
	require.True(t, n.MayAttend())
	require.EqualValues(t, link.Asleep, *w.bell.Word(), "ringing wakes the worker again")
	require.True(t, n.Attend(func() bool { return true }, 0))
	require.False(t, w.superseded.Load())
}

// interrupted is a program in which a message comes during the first steps.
type interrupted struct {
	program
	bell  *link.Bell
	steps atomic.Int32
}

func (p *interrupted) SendLate() bool {
	if p.steps.Add(1) < 10 {
		p.bell.Ring()
	}
	return false
}

// A goroutine that attends to the bell does not leave to the worker what comes
// while it works.
func TestAttendDuringStep(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.sockets = nil
	p := &interrupted{bell: w.bell}
	n.Node.program = p
	n.path.delayed = queue{{at: n.Now() + 2*time.Hour}}
	atomic.StoreUint32(w.bell.Word(), link.Asleep)
	w.wakesAt.Store(int64(n.Now() + time.Hour))
	var over atomic.Bool
	attended := make(chan bool, 1)
	go func() { attended <- n.Attend(over.Load, 0) }()
	isHeard := func() bool { return atomic.LoadUint32(w.bell.Word()) == link.Attended }
	require.Eventually(t, isHeard, time.Minute, time.Microsecond)
	w.bell.Ring()
	require.Eventually(t, func() bool { return p.steps.Load() == 10 && isHeard() }, time.Minute, time.Microsecond)
	require.Empty(t, attended)
	over.Store(true)
	n.Interrupt()
	require.True(t, <-attended)
}

// A node on the network, whose worker waits for sockets too, lets no goroutine
// attend to its bell.
func TestAttendOnNetwork(t *testing.T) {
	n := newWired(t)
	n.worker.sockets = noSockets{}
	require.False(t, n.MayAttend())
	require.False(t, n.Attend(func() bool { return false }, 0))
}

// noSockets are sockets from which nothing comes.
type noSockets struct{}

func (noSockets) poll() bool { return false }
func (noSockets) look()      {}
func (noSockets) take()      {}

// Waits spin while they are over soon, and now and then while they nearly are.
func TestSpins(t *testing.T) {
	const limit = time.Millisecond
	var s spins
	require.False(t, s.pay(), "nothing is known yet")
	for range 2 * bestScore {
		s.note(limit, limit)
	}
	failures := 0
	for ; s.pay(); failures++ {
		s.note(time.Hour, limit)
	}
	require.Equal(t, bestScore/failureCost, failures)
	for range nearlyPerSpin - 1 {
		s.note(nearlySpins*limit, limit)
		require.False(t, s.pay())
	}
	s.note(nearlySpins*limit, limit)
	require.True(t, s.pay())
	yields := 0
	for now := time.Hour; now < time.Hour+3*yieldAfter; now += yieldAfter / 5 {
		if s.yields(now) {
			yields++
		}
	}
	require.Equal(t, 3, yields)
}

// The worker looks soon for room in the channels of late events.
func TestLateEventsAreDueSoon(t *testing.T) {
	n := newWired(t)
	now := n.Now()
	require.Equal(t, never, n.advance(now))
	n.program.late = true
	require.Equal(t, now+time.Millisecond, n.advance(now))
}

// A worker sleeps while other threads help it, until it is needed.
func TestDoze(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.dueAt.Store(int64(never))
	before, arms := w.helps.Load(), w.door.armed()
	require.False(t, w.doze(before, arms), "no thread helps")
	w.helps.Add(1)
	require.True(t, w.doze(before, arms), "a thread has helped")
	w.dueAt.Store(0)
	require.False(t, w.doze(before, arms), "something is due")

	var end atomic.Bool
	helper := make(chan struct{})
	go func() {
		defer close(helper)
		for !end.Load() {
			w.helps.Add(1)
		}
	}()
	w.dueAt.Store(int64(n.Now() + 10*time.Millisecond))
	for w.doze(before, arms) {
	}
	require.LessOrEqual(t, w.due(), time.Duration(0))
	w.dueAt.Store(int64(never))
	dozed := make(chan struct{})
	go func() {
		defer close(dozed)
		for w.doze(before, arms) {
		}
	}()
	until := w.helps.Load() + 1000
	for w.helps.Load() < until {
		select {
		case <-dozed:
			require.FailNow(t, "no program waits for an event")
		default:
		}
	}
	n.arm()
	<-dozed
	end.Store(true)
	<-helper
}

// A worker naps while goroutines attend to the bell, so that what comes between
// two of their waits wakes nothing, until one parks.
func TestDozeWhileAttended(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.sockets = nil
	w.dueAt.Store(int64(never))
	require.True(t, w.bell.Attend())
	arms := w.door.armed()
	require.False(t, w.doze(w.helps.Load(), arms), "the goroutine only waits: the worker sleeps next")
	require.True(t, w.doze(w.helps.Load()-1, arms))
	require.False(t, w.doze(w.helps.Load()-1, arms+1), "a goroutine has parked")
	w.bell.Leave()
	require.False(t, w.doze(w.helps.Load(), arms))

	var end atomic.Bool
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		for !end.Load() {
			n.Attend(func() bool { return true }, 0)
		}
	}()
	dozed := make(chan struct{})
	go func() {
		defer close(dozed)
		for w.door.armed() == arms {
			w.doze(w.helps.Load(), arms)
			w.noNapUntil = 0
		}
	}()
	require.Eventually(t, w.door.dozes, time.Minute, time.Microsecond)
	n.Park()
	<-dozed
	end.Store(true)
	<-waits
}

// A thread that posts, and finds the worker awake and the mutex locked, leaves
// its work to the worker, which must not nap then.
func TestNoNapWhileRung(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.bell.Ring()
	n.mu.Lock()
	n.Resume()
	n.mu.Unlock()
	require.True(t, w.bell.IsRung())
	w.nap(w.door.armed(), time.Hour)
}

// Each wait of a program that parks does not end a nap.
func TestDozeWhileParking(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.dueAt.Store(int64(never))
	require.Eventually(t, func() bool { // the nap may be over before Park
		w.noNapUntil = 0
		arms := w.door.armed()
		dozed := make(chan struct{})
		go func() {
			defer close(dozed)
			w.doze(w.helps.Load()-1, arms)
		}()
		for !w.door.dozes() {
			select {
			case <-dozed:
				return false
			default:
			}
		}
		n.Park()
		<-dozed
		return w.noNapUntil > 0
	}, time.Minute, time.Microsecond)
	require.False(t, w.doze(w.helps.Load()-1, w.door.armed()))
}

// Threads that post do the work of a worker that naps, unless the program posts
// without waiting.
func TestRelieveDozing(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	atomic.StoreUint32(w.door.Dozing, 1)
	arms := w.door.armed()
	for range maxRelieved {
		w.dueAt.Store(0)
		require.True(t, n.Relieve())
		w.bell.Ring()
		n.Resume()
		require.Equal(t, never, time.Duration(w.dueAt.Load()), "the work is done")
		require.EqualValues(t, link.Silent, *w.bell.Word(), "ringing wakes nothing")
	}
	require.Equal(t, arms, w.door.armed())
	require.False(t, n.Relieve())
	require.Equal(t, arms+1, w.door.armed(), "the nap ends")
}

// A worker does not sleep on while the threads that helped leave something
// undone: they have ended polling, and spin for something else. Nor does it nap
// again soon.
func TestDozeWithWorkUndone(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	w.dueAt.Store(int64(never))
	doze := func() (helped bool) { return w.doze(w.helps.Load()-1, w.door.armed()) }
	w.bell.Ring()
	before := n.Now()
	require.True(t, doze(), "it sleeps on")
	require.GreaterOrEqual(t, w.noNapUntil, before+noNapTime)
	w.noNapUntil = never // that time is not over yet, however slow the machine is
	require.False(t, doze(), "it naps again at once")
	w.noNapUntil = 0
	w.bell.Hear()
	require.True(t, doze(), "later it naps again")
}

// A worker goes on napping while threads poll, even if the bell stays rung:
// they do the work as soon as they have a processor.
func TestDozeWhileThreadsPoll(t *testing.T) {
	n := newWired(t)
	w := &n.worker
	var end atomic.Bool
	helper := make(chan struct{})
	go func() {
		defer close(helper)
		for !end.Load() {
			w.helps.Add(1)
		}
	}()
	defer func() { <-helper }()
	defer end.Store(true)
	w.bell.Ring()
	require.Eventually(t, func() bool { // unless the system stops the helper for a while
		w.noNapUntil = 0
		w.dueAt.Store(int64(n.Now() + 3*nap))
		w.doze(w.helps.Load()-1, w.door.armed())
		return w.noNapUntil == 0
	}, time.Minute, time.Millisecond)
}
