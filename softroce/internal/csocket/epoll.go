// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket"
)

// The flags of epoll_ctl(2).
const (
	epollOneshot = 1 << 30
	epollET      = 1 << 31
)

// epollSet is what repoll_create makes. A wait looks only at members that may
// have changed since they were last found not ready: those in the queue.
type epollSet struct {
	fd       int // epoll of the system for descriptors that are no sockets; the program has its number
	channels int // epoll of the system in which threads wait: for fd, for bell, and for the channels of the members' connections
	bell     int // eventfd that wakes a thread; never read, as each ring is an event of its own with EPOLLET
	queue    queue

	mu      sync.Mutex // guards the fields below; held before locks of sockets, connections and queue
	members map[int]*member
	byKey   map[int32]*member // by the keys of the members' channels
	key     int32             // last key
	users   int               // number of threads in wait
	turn    bool              // whether the last report rounded the system's slots up
	ended   bool              // whether end was called
}

// queue has the members that may be ready.
type queue struct {
	mu       sync.Mutex
	all      []*member
	sleeping int  // number of threads that wait
	rung     bool // whether the bell was rung and no thread has heard it yet
}

// member is a socket in an epoll set.
type member struct {
	set     *epollSet
	socket  *socket
	fd      int // number of the socket
	events  uint32
	data    [8]byte
	key     int32               // identifies the channel of the socket's connection
	added   int                 // descriptor of this channel, after it was added to the set's channels; otherwise -1
	refused bool                // whether the system has not let the channel be added
	spent   bool                // whether EPOLLONESHOT has disabled the member
	packets *rsocket.PacketConn // whose completions goroutines take for the member, or nil
	queued  bool                // guarded by the queue's mu

	notified atomic.Bool // whether the socket may have changed since its completions were taken
	fired    atomic.Bool // whether the channel has had an event since the thread took its events
}

// Notify makes a thread look at the member.
func (m *member) Notify() {
	m.notified.Store(true)
	m.set.push(m)
}

// event is struct epoll_event. Its data is at another offset on amd64.
type event [unsafe.Sizeof(syscall.EpollEvent{})]byte

func (e *event) events() uint32 { return binary.NativeEndian.Uint32(e[:]) }
func (e *event) data() []byte   { return e[len(e)-8:] }

// Keys of what is in a set's channels beside the members' channels.
const (
	systemKey = -1
	bellKey   = -2
)

// newSet is repoll_create.
func newSet(flags int32) (int, syscall.Errno) {
	fd, err := syscall.EpollCreate1(int(flags) &^ syscall.O_NONBLOCK)
	if err != nil {
		return 0, errnoOf(err)
	}
	set := &epollSet{fd: fd, channels: -1, bell: -1, members: map[int]*member{}, byKey: map[int32]*member{}}
	if err := set.create(); err != 0 {
		syscall.Close(fd)
		set.free()
		return 0, err
	}
	table.Lock()
	defer table.Unlock()
	if table.sets == nil {
		table.sets = map[int]*epollSet{}
	}
	vacate(fd)
	table.sets[fd] = set
	return fd, 0
}

// create creates what threads wait for.
func (set *epollSet) create() (e syscall.Errno) {
	var err error
	if set.channels, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return errnoOf(err)
	}
	if set.bell, e = newEventFD(); e != 0 {
		return e
	}
	if err := set.addChannel(set.bell, pollIn|epollET, bellKey); err != nil {
		return errnoOf(err)
	}
	return errnoOf(set.addChannel(set.fd, pollIn, systemKey))
}

func (set *epollSet) addChannel(fd int, events uint32, key int32) error {
	return syscall.EpollCtl(set.channels, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: events, Fd: key})
}

// free closes what threads wait for.
func (set *epollSet) free() {
	for _, fd := range []int{set.channels, set.bell} {
		if fd >= 0 {
			syscall.Close(fd)
		}
	}
}

// findSet returns the epoll set of a descriptor, or nil.
func findSet(fd int32) *epollSet {
	table.RLock()
	defer table.RUnlock()
	return table.sets[int(fd)]
}

// end ends the set, but does not close its descriptor. Threads that wait
// return.
func (set *epollSet) end() {
	set.mu.Lock()
	defer set.mu.Unlock()
	set.ended = true
	for _, m := range set.members {
		set.drop(m)
	}
	if set.users == 0 {
		set.free()
	} else {
		set.ring()
	}
}

// remove removes a member whose socket is being closed.
func (set *epollSet) remove(m *member) {
	set.mu.Lock()
	defer set.mu.Unlock()
	set.drop(m)
}

// drop removes a member, if it is still there. The caller holds set.mu.
func (set *epollSet) drop(m *member) {
	m.socket.watchers.remove(m)
	if m.packets != nil {
		sealed.Open(m.packets.Internals()).Unwatch()
		m.packets = nil
	}
	if set.members[m.fd] != m {
		return
	}
	delete(set.members, m.fd)
	delete(set.byKey, m.key)
	if m.added >= 0 {
		_ = syscall.EpollCtl(set.channels, syscall.EPOLL_CTL_DEL, m.added, nil)
	}
}

// control is repoll_ctl.
func (set *epollSet) control(op, fd int32, e *event) syscall.Errno {
	s := find(fd)
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.ended {
		return syscall.EBADF
	}
	if s == nil {
		_, _, err := syscall.Syscall6(syscall.SYS_EPOLL_CTL, uintptr(set.fd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(e)), 0, 0)
		return err
	}
	if e == nil && op != syscall.EPOLL_CTL_DEL {
		return syscall.EFAULT
	}
	m := set.members[int(fd)]
	if m != nil && m.socket != s { // of a socket that was closed
		set.drop(m)
		m = nil
	}
	switch op {
	case syscall.EPOLL_CTL_ADD:
		if m != nil {
			return syscall.EEXIST
		}
		m = set.add(s)
		if s.isClosed() {
			set.drop(m)
			return syscall.EBADF
		}
	case syscall.EPOLL_CTL_MOD, syscall.EPOLL_CTL_DEL:
		if m == nil {
			return syscall.ENOENT
		}
	default:
		return syscall.EINVAL
	}
	if op == syscall.EPOLL_CTL_DEL {
		set.drop(m)
		return 0
	}
	m.events, m.data, m.spent = e.events(), [8]byte(e.data()), false
	m.Notify()
	return 0
}

// add makes the socket a member. The caller holds set.mu.
func (set *epollSet) add(s *socket) *member {
	for set.key = set.key%math.MaxInt32 + 1; set.byKey[set.key] != nil; {
		set.key = set.key%math.MaxInt32 + 1
	}
	m := &member{set: set, socket: s, fd: s.fd, key: set.key, added: -1}
	set.members[m.fd], set.byKey[m.key] = m, m
	s.watchers.add(m)
	return m
}

// push puts a member into the queue, and wakes a thread.
func (set *epollSet) push(m *member) {
	q := &set.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if m.queued {
		return
	}
	m.queued = true
	q.all = append(q.all, m)
	set.wake()
}

// wake wakes a thread if one waits. The caller holds the queue's mu.
func (set *epollSet) wake() {
	if set.queue.sleeping > 0 && !set.queue.rung {
		set.queue.rung = true
		set.ring()
	}
}

// ring makes a thread that waits, or the next one that will, look at the queue.
func (set *epollSet) ring() { ring(set.bell) }

// wait is repoll_wait.
func (set *epollSet) wait(events []event, timeout time.Duration) (int, syscall.Errno) {
	if !set.enter() {
		return 0, syscall.EBADF
	}
	defer set.leave()
	began := time.Now()
	for left := timeout; ; {
		system, err := set.harvest(left)
		if err != 0 {
			return 0, err
		}
		if n, err := set.report(events, system); n > 0 || err != 0 {
			return n, err
		}
		if timeout >= 0 {
			if left = timeout - time.Since(began); left <= 0 {
				return 0, 0
			}
		}
	}
}

// enter begins a wait. It fails if the set was closed.
func (set *epollSet) enter() bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	if !set.ended {
		set.users++
	}
	return !set.ended
}

// leave ends a wait.
func (set *epollSet) leave() {
	set.mu.Lock()
	defer set.mu.Unlock()
	set.users--
	switch {
	case !set.ended:
	case set.users == 0:
		set.free()
	default:
		set.ring() // for the next thread, as one wakes at a time
	}
}

// harvest waits for events of the set, for the timeout at most. It does not
// wait while the queue has members. It puts each member whose channel has had
// an event into the queue. system reports whether descriptors of the set that
// are not sockets are ready.
func (set *epollSet) harvest(timeout time.Duration) (system bool, err syscall.Errno) {
	q := &set.queue
	q.mu.Lock()
	sleeps := len(q.all) == 0 && timeout != 0
	if sleeps {
		q.sleeping++
	} else {
		timeout = 0
	}
	q.mu.Unlock()
	var got [64]syscall.EpollEvent
	n, err := epollWait(set.channels, got[:], timeout)
	if sleeps {
		q.mu.Lock()
		q.sleeping--
		q.mu.Unlock()
	}
	if err != 0 {
		return false, err
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	for _, e := range got[:n] {
		switch e.Fd {
		case systemKey:
			system = true
		case bellKey: // also if the thread has not slept: no other thread hears it then
			q.mu.Lock()
			q.rung = false
			q.mu.Unlock()
		default:
			if m := set.byKey[e.Fd]; m != nil {
				m.fired.Store(true)
				set.push(m)
			}
		}
	}
	return system, 0
}

// epollWait is epoll_pwait(2). A negative timeout means none.
func epollWait(fd int, events []syscall.EpollEvent, timeout time.Duration) (int, syscall.Errno) {
	mask := waitMask()
	millis := -1
	if timeout >= 0 {
		millis = int(min((timeout+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
	}
	n, _, err := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(millis), uintptr(unsafe.Pointer(&mask)), unsafe.Sizeof(mask))
	return int(n), err
}

// report writes the events of the system and those of the members in the queue.
// The system gets half of the slots, rounded up in every second call, and the
// queue gets the rest.
func (set *epollSet) report(events []event, system bool) (n int, err syscall.Errno) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.ended {
		return 0, syscall.EBADF
	}
	if system {
		half := len(events) / 2
		if set.turn = !set.turn; set.turn {
			half = len(events) - half
		}
		if n, err = set.reportSystem(events[:half]); err != 0 {
			return 0, err
		}
	}
	n += set.reportQueue(events[n:])
	if n == 0 && system { // the only slot was kept for the queue
		return set.reportSystem(events)
	}
	return n, 0
}

// reportSystem writes the events of descriptors that are no sockets. The caller
// holds set.mu.
func (set *epollSet) reportSystem(events []event) (int, syscall.Errno) {
	if len(events) == 0 {
		return 0, 0
	}
	n, _, err := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(set.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// reportQueue looks at the members in the queue and writes their events. The
// caller holds set.mu.
func (set *epollSet) reportQueue(events []event) (n int) {
	q := &set.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for left := len(q.all); left > 0 && n < len(events); left-- {
		m := q.all[0]
		q.all[0], q.all = nil, q.all[1:]
		q.mu.Unlock()
		revents := set.look(m)
		q.mu.Lock()
		if revents == 0 {
			continue
		}
		binary.NativeEndian.PutUint32(events[n][:], uint32(uint16(revents)))
		copy(events[n].data(), m.data[:])
		n++
		m.spent = m.events&epollOneshot != 0
		if !m.spent && m.events&epollET == 0 && !m.queued { // the next wait looks whether it is still ready
			m.queued = true
			q.all = append(q.all, m)
		}
	}
	if len(q.all) > 0 {
		set.wake()
	}
	return n
}

// look returns the events of a member that was taken out of the queue. The
// caller holds set.mu.
func (set *epollSet) look(m *member) int16 {
	if set.members[m.fd] != m || m.spent {
		m.leaveQueue()
		return 0
	}
	m.arm() // whose notifications do not put the member into the queue again
	m.leaveQueue()
	m.arm() // if the member was notified before leaveQueue
	revents := m.socket.revents(int16(m.events), false)
	if m.refused { // nothing would wake a thread for the socket
		revents |= pollErr
	}
	return revents
}

// leaveQueue makes Notify put the member into the queue again.
func (m *member) leaveQueue() {
	m.set.queue.mu.Lock()
	m.queued = false
	m.set.queue.mu.Unlock()
}

// arm takes the completions of the member's connection, if there may be any,
// and requests an event for the next one. If another thread has the pump, the
// next call does that; the member is notified when that thread gives the pump
// up. The caller holds set.mu.
func (m *member) arm() {
	if p := m.socket.packets.Load(); p != nil && m.packets == nil {
		m.packets = p
		sealed.Open(p.Internals()).Watch()
	}
	c := m.socket.conn.Load()
	if c == nil || m.socket.isClosed() {
		return
	}
	fired, notified := m.fired.Swap(false), m.notified.Swap(false)
	if !fired && !notified {
		return
	}
	i := sealed.Open(c.Internals())
	if !i.Hold() {
		m.fired.Store(fired)
		m.notified.Store(true)
		return
	}
	defer i.Release()
	if m.added < 0 {
		fd, err := i.Descriptor()
		if err == nil {
			err = m.set.addChannel(fd, pollIn|epollET, m.key)
		}
		if m.refused = err != nil; m.refused {
			m.notified.Store(true) // so that the next call tries again
		} else {
			m.added = fd
		}
	}
	if fired {
		i.TakeEvents()
	}
	i.Arm()
}
