// SPDX-License-Identifier: Apache-2.0

//go:build race

package detector

import (
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Enabled reports whether the program is built with -race. Callers test it
// before they call the functions of the package.
const Enabled = true

// A clock orders goroutines for the race detector, as a mutex would: what
// happens before a call of release also happens before what follows a later
// call of acquire. The race detector knows a clock by its address.
type clock [2]uint64

func (c *clock) acquire() { runtime.RaceAcquire(unsafe.Pointer(c)) }
func (c *clock) release() { runtime.RaceReleaseMerge(unsafe.Pointer(c)) }

// wait waits until c is closed. For the race detector, what the goroutine that
// closes c has done does not happen before the return of wait.
func wait(c <-chan struct{}) {
	runtime.RaceDisable()
	<-c
	runtime.RaceEnable()
}

const (
	// maxRunning limits the goroutines that access the memory of requests,
	// as the race detector permits 8128 goroutines.
	maxRunning = 2048
	// maxWaiting limits the goroutines that wait for accesses while they
	// poll. Each has a thread for itself, as C has called Go.
	maxWaiting = 4
	// maxParked limits the goroutines that wait until the device of a peer
	// executes their requests. Requests above the limit have none.
	maxParked = 1024
	// maxStrays limits the accesses that a region keeps in strays.
	maxStrays = 16
	// maxStaying limits the goroutines that stay after their accesses. The
	// race detector distinguishes 256 goroutines at a time.
	maxStaying = 192
	// maxGuests limits those that stay after accesses to the same region.
	maxGuests = 16
)

// running is the number of goroutines that access the memory of requests.
var running atomic.Int32

var (
	// mu guards everything below and the fields of tickets, queues, regions
	// and orders. A goroutine that accesses memory for the device must not
	// lock it. All other goroutines lock it as usual: what the program did
	// before a call of this package happens before later calls. That is
	// nothing new, as the race detector already orders all calls of C.
	mu         sync.Mutex
	parked     int                    // number of goroutines that wait for the execution of their requests
	tickets    = map[uint32]*ticket{} // keyed by number
	lastNumber uint32
	waiting    int                     // number of goroutines that wait for accesses while they poll
	staying    int                     // number of goroutines that stay after their accesses
	pages      = map[uintptr][]*span{} // memory of requests whose completions were not polled, by the numbers of its pages
	large      []*span                 // the same for memory of many pages
)

// step is an access of the device to memory, which a goroutine makes known to
// the race detector.
type step struct {
	done  chan struct{} // closed after the goroutine has released clock
	clock *clock        // released after the access
}

// precede makes earlier steps happen before what the goroutine does next.
func precede(earlier []step) {
	for _, s := range earlier {
		wait(s.done)
		s.clock.acquire()
	}
}

// stay keeps a goroutine that has accessed memory for the device. Once the
// goroutine has ended, the race detector may take another one for it, and then
// takes the access for an access of the other: that happens to a goroutine that
// polls some thousand times. nil keeps none.
type stay chan struct{}

// newStay returns a stay, or nil if there are too many. The caller holds mu.
func newStay() stay {
	if staying == maxStaying {
		return nil
	}
	staying++
	return make(stay)
}

// end ends the goroutine. The caller holds mu.
func (s stay) end() {
	if s != nil {
		staying--
		close(s)
	}
}

// wait waits until the goroutine may end.
func (s stay) wait() {
	if s != nil {
		wait(s)
	}
}

// ticket is a posted request.
type ticket struct {
	number uint32
	queue  *Queue
	access Access // how the request accesses memory
	memory [][]byte
	local  step         // the access to memory
	before []step       // steps that happen before local
	also   []*clock     // what else happens before the completion
	serve  chan *remote // takes the access to the memory of the peer, for the goroutine that waits for it; nil: there is none
	spans  []*span      // memory
	begun  atomic.Bool  // whether local has begun or is not needed any more
	stay   stay         // keeps the goroutine that made local until the completion is polled
}

// writes reports whether the request writes to memory.
func (t *ticket) writes() bool { return t.access != Sends }

// span is memory of a request.
type span struct {
	start, end uintptr
	ticket     *ticket
	step       step
	writes     bool
}

// Queue is a queue of work requests.
type Queue struct {
	kind        QueueKind
	outstanding []*ticket // requests whose completions were not polled, from index first on; nil: it was polled
	first       int
}

// trim removes what it can of requests whose completions were polled.
func (q *Queue) trim() {
	for q.first < len(q.outstanding) && q.outstanding[q.first] == nil {
		q.first++
	}
	if q.first >= 32 && q.first >= len(q.outstanding)/2 {
		q.outstanding = slices.Clone(q.outstanding[q.first:])
		q.first = 0
	}
}

// NewQueue returns a queue.
func NewQueue(kind QueueKind) *Queue { return &Queue{kind: kind} }

// Region is a memory region.
type Region struct {
	peers clock // accesses of peers
	// strays has the newest accesses of peers that the completion of no
	// request follows: their requests are unreliable, or not known any more.
	strays []step
	guests []stay // keep the goroutines that made the newest accesses of peers
}

// NewRegion returns a region.
func NewRegion() *Region { return &Region{} }

// Order has the accesses of a peer that happen before the next message.
type Order struct{ clock *clock }

// Post records that requests are being posted to the queue, and sets their
// tickets. It must be called in the goroutine that posts, before the device can
// see the requests.
func (q *Queue) Post(requests []Request) {
	mu.Lock()
	defer mu.Unlock() // not earlier: goroutines start in the order of their tickets, so that none waits for one that cannot start
	var busy []*ticket
	for i := range requests {
		t := q.add(&requests[i])
		if len(t.memory) > 0 {
			busy = append(busy, t)
		}
		if requests[i].Remote && parked < maxParked {
			parked++
			t.serve = make(chan *remote)
			go serveRemote(t.serve)
		}
	}
	if q.kind != SharedQueue {
		start(busy) // the completions have the order of the requests
		return
	}
	for i := range busy {
		start(busy[i : i+1])
	}
}

// add returns a new ticket for a request. The caller holds mu.
func (q *Queue) add(r *Request) *ticket {
	for lastNumber++; lastNumber == 0 || tickets[lastNumber] != nil; lastNumber++ {
	}
	t := &ticket{
		number: lastNumber, queue: q, access: r.Access, memory: r.Memory,
		local: step{make(chan struct{}), &clock{}},
	}
	tickets[t.number] = t
	r.Ticket = t.number
	q.outstanding = append(q.outstanding, t)
	if r.Access == Nothing {
		t.memory = nil
	}
	for _, b := range t.memory {
		overlapping(b, func(s *span) {
			if s.writes || t.writes() {
				t.before = append(t.before, s.step)
			}
		})
	}
	for _, b := range t.memory {
		insert(b, &span{ticket: t, step: t.local, writes: t.writes()})
	}
	for _, g := range r.Regions {
		t.before = append(t.before, g.strays...)
	}
	if len(t.memory) == 0 {
		close(t.local.done)
	}
	return t
}

const (
	pageSize = 4096
	// largePages is the number of pages from which on memory is in the list
	// large.
	largePages = 64
)

// insert records the memory b, as s describes it. The caller holds mu.
func insert(b []byte, s *span) {
	s.start = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	s.end = s.start + uintptr(len(b))
	s.ticket.spans = append(s.ticket.spans, s)
	if s.isLarge() {
		large = append(large, s)
		return
	}
	for p := s.start / pageSize; p <= (s.end-1)/pageSize; p++ {
		pages[p] = append(pages[p], s)
	}
}

// isLarge reports whether s is in the list large.
func (s *span) isLarge() bool { return s.end-s.start >= largePages*pageSize }

// remove undoes insert. The caller holds mu.
func (s *span) remove() {
	if s.isLarge() {
		large = without(large, s)
		return
	}
	for p := s.start / pageSize; p <= (s.end-1)/pageSize; p++ {
		if pages[p] = without(pages[p], s); len(pages[p]) == 0 {
			delete(pages, p)
		}
	}
}

// without removes s from a list, whose order does not matter.
func without(list []*span, s *span) []*span {
	i, last := slices.Index(list, s), len(list)-1
	list[i], list[last] = list[last], nil
	return list[:last]
}

// overlapping calls f once for each span that has a byte of b. The caller holds
// mu.
func overlapping(b []byte, f func(s *span)) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	end := start + uintptr(len(b))
	for _, s := range large {
		if s.start < end && start < s.end {
			f(s)
		}
	}
	in := func(p uintptr, list []*span) {
		for _, s := range list {
			if s.start < end && start < s.end && p == max(s.start, start)/pageSize { // not again in its other pages
				f(s)
			}
		}
	}
	first, last := start/pageSize, (end-1)/pageSize
	if last-first > uintptr(len(pages)) {
		for p, list := range pages {
			in(p, list)
		}
		return
	}
	for p := first; p <= last; p++ {
		in(p, pages[p])
	}
}

// start starts the goroutine that accesses the memory of requests. If there are
// too many such goroutines, the race detector gets to know nothing of the
// memory.
func start(batch []*ticket) {
	if len(batch) == 0 {
		return
	}
	if running.Load() >= maxRunning {
		for _, t := range batch {
			close(t.local.done)
		}
		return
	}
	running.Add(1)
	last := batch[len(batch)-1]
	last.stay = newStay()
	go mark(batch, last.stay)
}

// mark accesses the memory of requests for the race detector, and stays.
func mark(batch []*ticket, s stay) {
	for _, t := range batch {
		if !t.begun.CompareAndSwap(false, true) {
			close(t.local.done)
			continue
		}
		precede(t.before)
		for _, b := range t.memory {
			switch t.access {
			case Sends:
				DeviceSends(b)
			case Receives:
				DeviceReceives(b)
			case GetsReply:
				DeviceGetsReply(b)
			}
		}
		t.local.clock.release()
		close(t.local.done)
	}
	runtime.RaceDisable()
	running.Add(-1)
	runtime.RaceEnable()
	s.wait()
}

// The names of the following functions are in the reports of the race detector.

// DeviceSends reads memory of a posted send or RDMA write.
//
//go:noinline
func DeviceSends(b []byte) { read(b) }

// DeviceReceives writes memory of a posted receive.
//
//go:noinline
func DeviceReceives(b []byte) { write(b) }

// DeviceGetsReply writes memory of a posted RDMA read or atomic operation.
//
//go:noinline
func DeviceGetsReply(b []byte) { write(b) }

// PeerReads reads memory as an RDMA read of a peer does.
//
//go:noinline
func PeerReads(b []byte) { read(b) }

// PeerWrites writes memory as an RDMA write of a peer does.
//
//go:noinline
func PeerWrites(b []byte) { write(b) }

// read and write are called, rather than inlined, so that the race detector
// knows their callers.

//go:noinline
func read(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

//go:noinline
func write(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	}
}

// PeerWritesLast writes the last words of an RDMA write of a peer.
//
//go:noinline
func PeerWritesLast(words []byte) { change(words) }

// PeerChanges changes a word as an atomic operation of a peer does.
//
//go:noinline
func PeerChanges(word []byte) { change(word) }

// change changes words to the same values by atomic operations. So the race
// detector does not report atomic operations of the program on such a word, and
// what the program learns by them is ordered.
//
// The program may have unmapped or protected the memory meanwhile. The device
// then refuses the request, and the race detector need not know it.
//
//go:noinline
func change(words []byte) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { _ = recover() }()
	for ; len(words) >= 8; words = words[8:] {
		word := (*uint64)(unsafe.Pointer(&words[0]))
		probe(word) // a fault in add would end the process
		add(word)
	}
}

// probe panics unless the word can be read and written. It does not change the
// word.
//
//go:norace
func probe(word *uint64) {
	old := *word
	CompareAndSwap(word, old, old)
}

//go:noinline
func add(word *uint64) {
	atomic.AddUint64(word, 0)
	atomic.AddUint32((*uint32)(unsafe.Add(unsafe.Pointer(word), 4)), 0)
}

// Completed records that the calling goroutine has polled the completions of
// the requests with these tickets, in this order. It must be called while no
// other goroutine can poll the completion queue. It ignores unknown tickets.
func Completed(numbers []uint32) {
	mu.Lock()
	var done []*ticket
	for _, n := range numbers {
		t := tickets[n]
		if t == nil {
			continue
		}
		q := t.queue
		for i := q.first; i < len(q.outstanding); i++ {
			o := q.outstanding[i]
			if o != nil && (o == t || q.kind == SendQueue) {
				done = append(done, o)
				q.outstanding[i] = nil
			}
			if o == t {
				break
			}
		}
		q.trim()
	}
	patient := waiting < maxWaiting
	waiting++
	mu.Unlock()
	finish(done, patient)
	mu.Lock()
	waiting--
	mu.Unlock()
}

// Drop records that the device has forgotten the requests in the queue, as it
// was reset or destroyed. What the device did for them happens before Drop
// returns.
func (q *Queue) Drop() {
	mu.Lock()
	done := slices.DeleteFunc(q.outstanding, func(t *ticket) bool { return t == nil })
	q.outstanding, q.first = nil, 0
	mu.Unlock()
	finish(done, true)
}

// finish makes the accesses of requests, which are not in their queues any
// more, happen before its return. If patient is false, it does not wait for
// accesses that have not begun: the race detector does not get to know them.
func finish(done []*ticket, patient bool) {
	if len(done) == 0 {
		return
	}
	for _, t := range done {
		if patient || !t.begun.CompareAndSwap(false, true) {
			wait(t.local.done)
		}
		t.local.clock.acquire()
	}
	mu.Lock()
	defer mu.Unlock()
	for _, t := range done {
		for _, c := range t.also {
			c.acquire()
		}
		delete(tickets, t.number)
		if t.serve != nil {
			close(t.serve)
			parked--
		}
		t.stay.end()
		for _, s := range t.spans {
			s.remove()
		}
	}
}

// Release makes what the device has done with the region's memory happen before
// its return, as the region is removed.
func (g *Region) Release(memory []byte) {
	mu.Lock()
	var all []step
	overlapping(memory, func(s *span) { all = append(all, s.step) })
	mu.Unlock()
	precede(all)
	g.Acquire()
	mu.Lock()
	defer mu.Unlock()
	for _, s := range g.guests {
		s.end()
	}
	g.guests = nil
}

// Acquire makes the accesses of peers to the region happen before its return.
func (g *Region) Acquire() { g.peers.acquire() }

// Before makes the accesses of peers to the region happen before the completion
// of a request, as the request invalidates a key of the region.
func (g *Region) Before(ticket uint32) {
	mu.Lock()
	defer mu.Unlock()
	if t := tickets[ticket]; t != nil {
		t.also = append(t.also, &g.peers)
	}
}

// Next makes the accesses of the peer happen before the completion of the
// request with the ticket, which has received a message from the peer.
func (o *Order) Next(ticket uint32) {
	mu.Lock()
	defer mu.Unlock()
	if t := tickets[ticket]; t != nil && o.clock != nil {
		t.also = append(t.also, o.clock)
		o.clock = nil
	}
}

// Acquire makes the accesses of the peer happen before its return, as the peer
// has no access any more.
func (o *Order) Acquire() {
	mu.Lock()
	defer mu.Unlock()
	if o.clock != nil {
		o.clock.acquire()
	}
}

// Account has what a completion counter has counted.
type Account struct {
	steps  []step
	clocks []*clock
}

// maxCounted limits the steps and clocks of an Account.
const maxCounted = 64

// Request adds the accesses of the request with the ticket, which is complete.
func (a *Account) Request(ticket uint32) {
	mu.Lock()
	defer mu.Unlock()
	if t := tickets[ticket]; t != nil {
		a.steps = append(a.steps, t.local)
		a.clocks = append(a.clocks, t.also...)
	}
}

// Peer adds the accesses in o.
func (a *Account) Peer(o *Order) {
	mu.Lock()
	defer mu.Unlock()
	if o.clock != nil {
		a.clocks = append(a.clocks, o.clock)
	}
}

// Add adds what other has.
func (a *Account) Add(other Account) {
	mu.Lock()
	defer mu.Unlock()
	a.steps = append(a.steps, other.steps...)
	for _, c := range other.clocks {
		if len(a.clocks) == 0 || a.clocks[len(a.clocks)-1] != c {
			a.clocks = append(a.clocks, c)
		}
	}
	if len(a.steps)+len(a.clocks) > maxCounted {
		all := step{make(chan struct{}), &clock{}}
		go all.follow(*a)
		*a = Account{steps: []step{all}}
	}
}

// follow makes what a has happen before s.
func (s step) follow(a Account) {
	a.acquire()
	s.clock.release()
	close(s.done)
}

// Acquire makes the accesses happen before its return, as the program reads the
// counter.
func (a *Account) Acquire() {
	mu.Lock()
	all := Account{slices.Clone(a.steps), slices.Clone(a.clocks)}
	mu.Unlock()
	all.acquire()
}

func (a *Account) acquire() {
	precede(a.steps)
	for _, c := range a.clocks {
		c.acquire()
	}
}

// remote is an access to the memory of a peer.
type remote struct {
	kind   RemoteAccess
	memory []byte
	before []step   // steps that happen before
	clocks []*clock // get the access
	stay   stay

	done chan struct{}
}

// Remote records that a request accesses the memory of this program, which is
// the peer of the request's queue pair. request is its ticket, or 0 if the
// request is not known any more. reliable says whether the access happens
// before the completion of the request. g is the region of the memory, and o
// the order of the peer's queue pair. The device must not access the memory
// before Remote returns.
func Remote(request uint32, reliable bool, kind RemoteAccess, memory []byte, g *Region, o *Order) {
	if len(memory) == 0 {
		return
	}
	mu.Lock()
	if o.clock == nil {
		o.clock = &clock{}
	}
	a := &remote{kind: kind, memory: memory, clocks: []*clock{o.clock, &g.peers}, done: make(chan struct{})}
	writes := kind != RemoteRead
	overlapping(memory, func(s *span) {
		if writes || s.writes {
			a.before = append(a.before, s.step)
		}
	})
	a.before = append(a.before, g.strays...)
	var serve chan<- *remote
	t := tickets[request]
	if t != nil {
		serve, t.serve = t.serve, nil
	}
	if t != nil && reliable {
		a.clocks = append(a.clocks, t.local.clock)
		insert(memory, &span{ticket: t, step: step{a.done, t.local.clock}, writes: writes})
	} else {
		if len(g.strays) == maxStrays {
			g.strays = g.strays[:0] // the newest has the earlier ones
		}
		c := &clock{}
		a.clocks = append(a.clocks, c)
		g.strays = append(g.strays, step{a.done, c})
	}
	if serve != nil {
		parked--
	}
	a.stay = g.welcome()
	mu.Unlock()
	if serve != nil {
		serve <- a
	} else {
		go accessRemote(a)
	}
	wait(a.done)
}

// serveRemote runs in a goroutine that the posting of a request has created. It
// accesses the memory of the peer, unless the request is not executed.
func serveRemote(access <-chan *remote) {
	if a := <-access; a != nil {
		accessRemote(a)
	}
}

func accessRemote(a *remote) {
	precede(a.before)
	switch a.kind {
	case RemoteRead:
		PeerReads(a.memory)
	case RemoteAtomic:
		PeerChanges(a.memory)
	case RemoteWrite:
		body, words := split(a.memory)
		PeerWrites(body)
		PeerWrites(a.memory[len(body)+len(words):])
		PeerWritesLast(words)
	}
	for _, c := range a.clocks {
		c.release()
	}
	close(a.done)
	a.stay.wait()
}

// welcome returns a stay for a goroutine that accesses the region, until the
// region is removed or other goroutines have accessed it. The caller holds mu.
func (g *Region) welcome() stay {
	if len(g.guests) == maxGuests {
		g.guests[0].end()
		g.guests = slices.Delete(g.guests, 0, 1)
	}
	s := newStay()
	if s != nil {
		g.guests = append(g.guests, s)
	}
	return s
}

// polledBytes is the number of bytes at the end of an RDMA write that programs
// may poll, as the device writes them last.
const polledBytes = 64

// split returns the whole words among the last bytes of b, and what is before
// them.
func split(b []byte) (body, words []byte) {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	end := start + uintptr(len(b))
	first := max(start, end-min(polledBytes, uintptr(len(b))))
	first = (first + 7) &^ 7
	last := end &^ 7
	if first >= last {
		return b, nil
	}
	return b[:first-start], b[first-start : last-start]
}
