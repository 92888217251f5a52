// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
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
)

// Program has the objects that the process's program holds. The node calls its
// methods while the node is locked.
type Program interface {
	// CompletionEvent reports that a queue which was armed has a
	// completion.
	CompletionEvent(q *engine.CQ)
	// AsyncEvent reports an event of a device, or of an object of it.
	AsyncEvent(d *engine.Device, e engine.AsyncEvent)
	// SendLate sends the completion events that found no room in their
	// channels, and reports whether some have found none again.
	SendLate() (left bool)
	// Removed reports that the device was removed.
	Removed()
	// Objects counts the objects.
	Objects() stat.Objects
}

// Node is this process as a node of the network. One mutex guards it, its
// devices and the program's objects. A thread that waits does not hold it, and
// takes it after the locks of queues.
type Node struct {
	mu      sync.Mutex
	began   time.Time
	program Program
	slot    int // number of the node on its machine

	called bool         // a call of the program has the mutex
	used   []engine.Way // on which that call has sent something to other processes

	devices devices
	path    path
	network network
	groups  groups
	cm      connections
	worker  worker
}

// New returns a node with a device, on the network that SetNetwork or the
// environment chose. If the process cannot be on it, New writes the cause to
// standard error, and the device is removed.
func New(program Program, door Doorbell) *Node {
	n := newNode(program, door)
	n.mu.Lock() // the link is there before the device
	defer n.mu.Unlock()
	lack := n.join()
	n.path.hostile = chosenHostility()
	n.path.captures = chosenCaptures()
	n.path.watch()
	n.devices.plug()
	n.cm.start()
	if lack != nil {
		fmt.Fprintln(os.Stderr, "softroce:", lack)
		n.devices.removed = true
		n.devices.current.Remove()
	}
	return n
}

// newNode returns a node without a network and without a device.
func newNode(program Program, door Doorbell) *Node {
	n := &Node{began: time.Now(), program: program, slot: 1 + rand.IntN(link.Slots-1)}
	n.devices = devices{n: n, opens: map[*engine.Device]int{}}
	n.path.n = n
	n.groups = newGroups(n)
	n.cm = newConnections(n)
	n.worker = worker{n: n, door: door, bell: link.NewBell(door.Word)}
	return n
}

// join makes the node one of the network that was chosen. If that fails, the
// node has no neighbours.
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

// Start starts the worker, and lets verbena softroce stat ask the process.
func (n *Node) Start() {
	n.publish()
	go n.worker.work()
}

// Now returns the time since the node began.
func (n *Node) Now() time.Duration { return time.Since(n.began) }

// Lock locks the node for a call of the program.
func (n *Node) Lock() {
	n.mu.Lock()
	n.called = true
}

// Unlock ends what Lock began. The worker does what has become due. What the
// call has sent leaves the process first: the program may end before the worker
// runs.
func (n *Node) Unlock() {
	n.network.Flush()
	n.network.wake()
	debts := n.debts()
	n.called, n.used = false, n.used[:0]
	n.mu.Unlock()
	n.worker.bell.Ring()
	if len(debts) > 0 {
		await(debts)
	}
}

// Advance does what is due. The caller has the node locked.
func (n *Node) Advance() { n.advance(n.Now()) }

// advance does what is due and returns the time of what comes next.
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
	if n.program.SendLate() { // events of what was published just now, too
		next = min(next, now+time.Millisecond)
	}
	n.network.wake()
	return next
}

// Hear tells the devices which queues have new requests. The caller has the
// node locked.
func (n *Node) Hear() {
	for p := n.worker.door.take(); p != nil; {
		q := (*engine.WorkQueue)(p)
		p = *(*unsafe.Pointer)(unsafe.Pointer(&q.Next)) // once Rung is 0 the queue may be on the list again
		// A Store could be seen after the load of Posted, as in
		// engine.CQ.add.
		atomic.SwapUint32(&q.Rung, 0)
		for _, d := range n.devices.inUse { // the device whose queue it is hears it
			d.Ring(q)
		}
	}
}

// never is the time at which nothing is due.
const never = engine.Never
