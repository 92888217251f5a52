// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/stat"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// Program holds the objects of the program in this process: queues, queue pairs
// and so on. The node calls the methods with its mutex locked.
type Program interface {
	// CompletionEvent reports that a completion queue got a completion. The
	// queue was armed as armed says.
	CompletionEvent(q *engine.CQ, armed uint32)
	// Writes reports that the device is about to write to the memory of the
	// request with the ticket.
	Writes(ticket uint32)
	// Overwritten reports that the device has written n bytes to the memory
	// of the receive with the ticket that its completion will not count.
	Overwritten(ticket, n uint32)
	// Dropped reports that the request with the ticket will not complete.
	Dropped(ticket uint32)
	// AsyncEvent reports an asynchronous event of the device d, or of one
	// of its objects.
	AsyncEvent(d *engine.Device, e engine.AsyncEvent)
	// SendLate sends the completion events that were kept because their
	// channel was full. left reports whether channels are still full.
	SendLate() (left bool)
	// Removed reports that the device of the card c has been unplugged.
	Removed(c *Card)
	// Objects returns the number of objects of each kind that the program
	// has of devices of the card c, for the statistics.
	Objects(c *Card) stat.Objects
}

// Node is this process as a node of the network. Its mutex guards the node, its
// devices and the program's objects. A thread that waits for something does not
// hold the mutex. A thread that needs the lock of a queue as well locks the
// queue first.
type Node struct {
	mu      sync.Mutex
	copying sync.WaitGroup // threads that make copies without mu; begun, and waited for, with mu held
	copies  engine.Copies
	began   time.Time
	program Program
	slot    int // slot number of the node on its machine; part of its queue pairs' numbers

	called bool         // whether a call of the program holds mu
	woke   bool         // whether goroutines of the program were woken, which the worker has to let run
	used   []engine.Way // ways on which the call that holds mu has sent something to other processes

	limits  engine.Limits // of the node's devices
	check   Check
	devices devices
	path    path
	network network
	groups  groups
	cm      connections
	worker  worker
}

// New returns a node with the devices that SetDevices or the environment chose,
// on the network that SetNetwork or the environment chose. If the process
// cannot join the network, New writes the cause to standard error, and the node
// starts with its devices removed.
func New(program Program, door Doorbell) *Node {
	n := newNode(program, door)
	n.mu.Lock() // no thread may use the device before New returns
	defer n.mu.Unlock()
	// The network is chosen first: with the limits, the choices are made.
	joinErr := n.join()
	limits, limitsErr := chosenLimits()
	check, checkErr := chosenCheck()
	devices, devicesErr := chosenDevices()
	n.limits, n.check, joinErr = limits, check, cmp.Or(limitsErr, checkErr, devicesErr, joinErr)
	n.devices.configure(devices)
	n.path.hostile = chosenHostility()
	n.path.captures = chosenCaptures()
	n.path.watch()
	n.devices.plugAll()
	n.cm.start()
	if joinErr != nil {
		fmt.Fprintln(os.Stderr, "softroce:", joinErr)
		for _, c := range n.devices.cards {
			c.removed = true
			c.current.Remove()
		}
	}
	return n
}

// Limits returns the limits of the node's devices.
func (n *Node) Limits() engine.Limits { return n.limits }

// Check says whether the memory of requests is checked. It is NoCheck if the
// environment has options that SetCheck would refuse.
func (n *Node) Check() Check { return n.check }

// newNode returns a node that has neither a network nor a device yet.
func newNode(program Program, door Doorbell) *Node {
	n := &Node{began: time.Now(), program: program, slot: 1 + rand.IntN(link.Slots-1), limits: engine.Largest()}
	n.devices = devices{n: n, opens: map[*engine.Device]int{}, owners: map[wire.GID]*Card{}}
	n.devices.configure(defaultDevices)
	n.path.n = n
	n.copies.Await = n.copying.Wait
	n.groups = newGroups(n)
	n.cm = newConnections(n)
	n.worker = worker{n: n, door: door, bell: link.NewBell(door.Word)}
	return n
}

// join connects the node to the chosen network. If it fails, the node reaches
// only itself.
func (n *Node) join() error {
	u, err := chosenInternet()
	if u != nil {
		if err = u.join(n); err == nil {
			return nil
		}
		u.close()
	}
	m := newMachine(n)
	n.network = m
	if err != nil {
		return err
	}
	return m.join()
}

// Start starts the worker, and lets "verbena softroce stat" query the process.
func (n *Node) Start() {
	n.publish()
	go n.worker.work()
}

// Now returns the time since the node began.
func (n *Node) Now() time.Duration { return time.Since(n.began) }

// Lock locks the node for the duration of a call of the program. Until Unlock,
// the node records on which ways (see engine.Way) the call sends.
func (n *Node) Lock() {
	n.mu.Lock()
	n.called = true
}

// Unlock ends a call of the program. It sends the packets of the call itself,
// since the program may end before the worker runs, and waits until they have
// left the process. It also does the work that is due now, because that is
// faster than waking the worker.
func (n *Node) Unlock() {
	n.network.Flush()
	n.network.wake()
	pending := n.pending()
	n.called, n.used = false, n.used[:0]
	n.worker.follow()
	n.woke = false // the caller goes on
	n.mu.Unlock()
	if len(pending) > 0 {
		await(pending)
	}
}

// Woke tells the node that goroutines of the program were woken. The caller
// holds the node's lock.
func (n *Node) Woke() { n.woke = true }

// Advance does the work that is due now. The caller holds the node's lock.
func (n *Node) Advance() { n.advance(n.Now()) }

// advance does the work that is due at the time now. next is the time at which
// advance must be called again.
func (n *Node) advance(now time.Duration) (next time.Duration) {
	n.Hear()
	more := n.network.receive()
	n.path.deliverDelayed(now)
	next = n.cm.advance(now)
	for _, d := range n.devices.inUse {
		next = min(next, d.Advance(now))
	}
	if n.path.loopBack() || more {
		next = now
	}
	next = min(next, n.path.due())
	n.network.Flush()
	for _, d := range n.devices.inUse {
		next = min(next, d.Publish())
	}
	if n.program.SendLate() { // includes the events of the completions that were published just now
		next = min(next, now+time.Millisecond)
	}
	n.network.wake()
	return next
}

// Hear tells the devices which queues have new work requests. The caller holds
// the node's lock.
func (n *Node) Hear() {
	for p := n.worker.door.take(); p != nil; {
		q := (*engine.WorkQueue)(p)
		p = *(*unsafe.Pointer)(unsafe.Pointer(&q.Next)) // once Rung is 0, the queue may be put on the list again
		// Swap rather than Store, as in engine.CQ.show: the device's load of
		// Posted must not come before it.
		atomic.SwapUint32(&q.Rung, 0)
		for _, d := range n.devices.inUse { // devices to which the queue does not belong ignore it
			d.Ring(q)
		}
	}
}

// Receive lets the devices receive what has come from other processes. It may
// have come without waking this one. The caller holds the node's lock.
func (n *Node) Receive() {
	for range 5 { // a fourth of a ring at a time; peers that send on must not keep the caller
		if !n.network.receive() {
			return
		}
	}
}

// never is the time at which nothing is due.
const never = engine.Never
