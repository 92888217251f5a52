// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// #include "ring.h"
import "C"

// node is this process as a node of the network: its device, the objects that
// programs have, and the goroutine that does the device's work. The mutex guards all
// of it. It is never held while something waits, and taken after the locks of queues.
type node struct {
	mu        sync.Mutex
	acked     sync.Cond // an event was acknowledged, mu
	began     time.Time
	device    *engine.Device   // the one that is plugged in or was last
	inUse     []*engine.Device // it, and those that were removed and are still open
	removed   bool             // the device is
	addresses []netip.Addr     // of the device; nil: the machine's
	inbox     []*wire.Packet   // sent by the device to itself
	copies    []byte           // what the unreliable ones of these carry

	bell     *link.Bell
	looks    atomic.Int64  // when something is due, as a time.Duration; written with the mutex
	helps    atomic.Int64  // worker steps that polling threads ran, or found not to be due
	wary     time.Duration // until when the worker does not nap; its own
	slot     int
	link     *link.Link // nil: there are no neighbours
	internet *internet  // nil: there are no other machines
	packets  engine.PacketPool
	called   bool         // a call of the program's has the mutex
	used     []engine.Way // on which it has sent something to other processes

	groups      map[wire.GID]io.Closer // names of the groups that have queue pairs here
	memberships map[wire.GID]members   // of groups that were sent to a short while ago

	faults   func(p *wire.Packet) Fault // nil: packets arrive
	hostile  *hostility                 // nil: the device is friendly
	delayed  queue
	serial   uint64 // of what was delayed last
	captures []*capture
	watched  atomic.Bool // there are faults or captures

	contexts map[*libibverbs.Context]*context
	pds      map[*libibverbs.Pd]*pd
	mrs      map[*libibverbs.Mr]*mr
	mws      map[*libibverbs.Mw]*mw
	channels map[*libibverbs.CompChannel]*channel
	cqs      map[*libibverbs.Cq]*cq
	srqs     map[*libibverbs.Srq]*srq
	qps      map[*libibverbs.Qp]*qp
	ahs      map[*libibverbs.Ah]*ah
	bufs     map[*libibverbs.Buf]*buf

	byCQ  map[*engine.CQ]*cq
	bySRQ map[*engine.SRQ]*srq
	byQP  map[*engine.QP]*qp

	cm connections

	late []*channel // whose pipe was full
}

var (
	theNode  *node
	makeNode sync.Once
)

// self returns this process's node, which it makes when it is first needed.
func self() *node {
	makeNode.Do(func() {
		theNode = newNode()
		theNode.publish()
		datapath.SetIdle(theNode.help)
		go theNode.work()
	})
	return theNode
}

// emptyNode returns a node without a device.
func emptyNode() *node {
	n := &node{
		began:  time.Now(),
		groups: map[wire.GID]io.Closer{}, memberships: map[wire.GID]members{},
		contexts: map[*libibverbs.Context]*context{}, pds: map[*libibverbs.Pd]*pd{},
		mrs: map[*libibverbs.Mr]*mr{}, mws: map[*libibverbs.Mw]*mw{},
		channels: map[*libibverbs.CompChannel]*channel{}, cqs: map[*libibverbs.Cq]*cq{},
		srqs: map[*libibverbs.Srq]*srq{}, qps: map[*libibverbs.Qp]*qp{}, ahs: map[*libibverbs.Ah]*ah{}, bufs: map[*libibverbs.Buf]*buf{},
		byCQ: map[*engine.CQ]*cq{}, bySRQ: map[*engine.SRQ]*srq{}, byQP: map[*engine.QP]*qp{},
	}
	n.acked.L = &n.mu
	return n
}

func newNode() *node {
	n := emptyNode()
	n.mu.Lock() // the link is there before the device
	defer n.mu.Unlock()
	n.bell = link.NewBell((*uint32)(C.soft_word()))
	C.soft_set_word((*C.uint32_t)(n.bell.Word()))
	C.soft_watch_fork()
	var lack error
	if n.internet, lack = chosenInternet(); n.internet != nil {
		if lack = n.internet.wait(n.bell); lack != nil {
			n.internet.close()
			n.internet = nil
		}
	}
	n.slot = 1 + rand.IntN(link.Slots-1)
	if n.internet == nil && lack == nil {
		lack = n.join()
	}
	n.hostile = chosenHostility()
	n.captures = chosenCaptures()
	n.watch()
	n.plug()
	n.cm = n.newConnections()
	if n.internet != nil {
		n.start(n.internet)
	}
	if lack != nil {
		fmt.Fprintln(os.Stderr, "softroce:", lack)
		n.removed = true
		n.device.Remove()
	}
	return n
}

func (n *node) now() time.Duration { return time.Since(n.began) }

// lock locks the node for a call of the program's.
func (n *node) lock() {
	n.mu.Lock()
	n.called = true
}

// unlock ends what lock began. The goroutine does what has become due. What the call has sent leaves the process first: the program may end
// before the goroutine is there.
func (n *node) unlock() {
	if n.internet != nil {
		n.internet.flush()
	}
	if n.link != nil {
		n.link.Flush()
	}
	debts := n.debts()
	n.called, n.used = false, n.used[:0]
	n.mu.Unlock()
	n.bell.Ring()
	if len(debts) > 0 {
		await(debts)
	}
}

// work does the device's work whenever there is some, for as long as the process lives. docs/softroce.md has its name.
func (n *node) work() {
	var poll func() bool
	if n.internet != nil {
		poll = n.internet.poll
	}
	var looked time.Duration // when at all sockets
	for {
		if now := n.now(); n.internet != nil && now-looked >= nap { // what is busy must not keep the others waiting
			n.internet.poller.Look()
			looked = now
		}
		n.bell.Hear()
		n.mu.Lock()
		n.looks.Store(int64(n.advance(n.now())))
		n.mu.Unlock()
		helps, arms := n.helps.Load(), armed()
		if n.bell.Spin(n.due(), poll) || n.doze(helps, arms) {
			continue
		}
		n.bell.Sleep(n.due)
		if n.internet != nil {
			n.internet.poller.Take()
		}
	}
}

// due returns how long nothing will be due.
func (n *node) due() time.Duration { return time.Duration(n.looks.Load()) - n.now() }

// step does what is due, in the place of the worker, for somebody who has the mutex.
func (n *node) step() {
	now := n.now()
	next := n.advance(now)
	if before := time.Duration(n.looks.Swap(int64(next))); next < before || next <= now {
		n.bell.Ring() // the worker sleeps for too long, or there is more to do
	}
}

// spins is how often a queue has been polled in vain, since it was armed, by who spins.
const spins = 16

// help does what there is to do, in the thread of somebody who has found a queue empty: what it spins for is there sooner than
// if the worker had to wake up.
func (n *node) help(queue unsafe.Pointer) {
	if n.watched.Load() || atomic.LoadUint32((*uint32)(&(*C.struct_soft_cq)(queue).empty)) < spins {
		return
	}
	n.helps.Add(1)
	if n.internet != nil {
		n.internet.poll()
	}
	if n.bell.IsRung() && n.mu.TryLock() {
		if n.bell.Hear() {
			n.step()
		}
		n.mu.Unlock()
	}
}

//export soft_go_help
func soft_go_help(queue unsafe.Pointer) { theNode.help(queue) }

// HelpPrograms makes programs that are not Go do the device's work while they spin, as those of Go do.
func HelpPrograms() { C.soft_help_programs() }

// armed returns how often a queue was armed.
func armed() uint32 { return uint32(C.soft_arms()) }

const (
	// nap is after how long a worker that others help looks again whether they do. A worker that is busy looks at all sockets
	// that often.
	nap = time.Millisecond
	// wariness is for how long the worker does not nap after others have left something undone: they spin for something else
	// than a completion, such as memory that is written.
	wariness = 32 * nap
)

// doze lets the worker sleep without being woken while polling threads help, until something is due or left undone, or a program arms a queue to wait
// for an event. It reports whether there was help since the given number.
func (n *node) doze(helps int64, arms uint32) (helped bool) {
	if n.now() < n.wary {
		return false
	}
	for n.helps.Load() != helps && armed() == arms {
		d := n.due()
		if d <= 0 {
			break
		}
		helps, helped = n.helps.Load(), true
		C.soft_doze(C.uint32_t(arms), C.uint32_t(min(d, nap).Microseconds()))
		if n.internet != nil { // they look at one socket
			n.internet.poller.Look()
		}
		if n.bell.Waits() {
			n.wary = n.now() + wariness
			break
		}
	}
	return helped
}

// advance does what is due and returns the time of what comes next.
func (n *node) advance(now time.Duration) (next time.Duration) {
	n.hear()
	more := n.poll()
	n.deliverDelayed(now)
	next = n.cm.advance(now)
	for _, d := range n.inUse {
		next = min(next, d.Advance(now))
	}
	for i := 0; i < len(n.inbox); i++ { // answers are appended
		n.device.Receive(n.inbox[i])
	}
	if len(n.inbox) > 0 {
		clear(n.inbox)
		n.inbox, n.copies = n.inbox[:0], n.copies[:0]
		more = true
	}
	if more {
		next = now
	}
	if len(n.delayed) > 0 {
		next = min(next, n.delayed[0].at)
	}
	if n.internet != nil {
		n.internet.flush()
	}
	for _, d := range n.inUse {
		next = min(next, d.Publish())
	}
	if n.tell() { // also of what was published just now
		next = min(next, now+time.Millisecond)
	}
	if n.link != nil {
		n.link.Flush()
	}
	return next
}

// hear tells the devices which queues have new requests.
func (n *node) hear() {
	rung := (*unsafe.Pointer)(unsafe.Pointer(C.soft_rung()))
	for p := atomic.SwapPointer(rung, nil); p != nil; {
		q := (*engine.WorkQueue)(p)
		p = *(*unsafe.Pointer)(unsafe.Pointer(&q.Next)) // once Rung is 0 the queue may be on the list again
		// Not Store, as in engine.CQ.add: what was posted must be looked at afterwards.
		atomic.SwapUint32(&q.Rung, 0)
		for _, d := range n.inUse { // only its own hears it
			d.Ring(q)
		}
	}
}

// never is the time at which nothing is due.
const never = engine.Never

// errno returns the errno that an error is or stems from.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return syscall.EIO
}
