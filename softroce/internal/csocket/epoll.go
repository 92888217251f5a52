// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"encoding/binary"
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

// epollSet is what repoll_create makes: an epoll of the system for descriptors
// that are no sockets, and the sockets.
type epollSet struct {
	fd int

	mu      sync.Mutex
	members map[int]*member
	changes atomic.Int64 // number of changes of the members
	waiting watchers     // threads in repoll_wait
}

// member is a socket in an epoll set.
type member struct {
	socket *socket
	events uint32
	data   [8]byte
	conn   *rsocket.Conn // connection that notifies the member
	spent  bool          // whether EPOLLONESHOT has disabled the member
	edge   atomic.Bool   // whether the socket may have changed since it was reported
}

// Notify records that the socket may have changed.
func (m *member) Notify() { m.edge.Store(true) }

// ready reports whether the member may be reported again.
func (m *member) ready() bool { return m == nil || m.events&epollET == 0 || m.edge.Load() }

// event is struct epoll_event. Its data is at another offset on amd64.
type event [unsafe.Sizeof(syscall.EpollEvent{})]byte

func (e *event) events() uint32 { return binary.NativeEndian.Uint32(e[:]) }
func (e *event) data() []byte   { return e[len(e)-8:] }

// newSet is repoll_create.
func newSet(flags int32) (int, syscall.Errno) {
	fd, err := syscall.EpollCreate1(int(flags) &^ syscall.O_NONBLOCK)
	if err != nil {
		return 0, errnoOf(err)
	}
	table.Lock()
	defer table.Unlock()
	if table.sets == nil {
		table.sets = map[int]*epollSet{}
	}
	table.sets[fd] = &epollSet{fd: fd, members: map[int]*member{}}
	return fd, 0
}

// findSet returns the epoll set of a descriptor, or nil.
func findSet(fd int32) *epollSet {
	table.RLock()
	defer table.RUnlock()
	return table.sets[int(fd)]
}

// end ends the set.
func (set *epollSet) end() {
	set.mu.Lock()
	for fd, m := range set.members {
		set.drop(fd, m)
	}
	set.mu.Unlock()
	syscall.Close(set.fd)
}

// drop removes a member. The caller holds set.mu.
func (set *epollSet) drop(fd int, m *member) {
	m.socket.watchers.remove(m)
	if m.conn != nil {
		sealed.Open(m.conn.Internals()).Unwatch(m)
	}
	delete(set.members, fd)
}

// control is repoll_ctl.
func (set *epollSet) control(op, fd int32, e *event) syscall.Errno {
	s := find(fd)
	if s == nil {
		_, _, err := syscall.Syscall6(syscall.SYS_EPOLL_CTL, uintptr(set.fd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(e)), 0, 0)
		return err
	}
	if e == nil && op != syscall.EPOLL_CTL_DEL {
		return syscall.EFAULT
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	m := set.members[int(fd)]
	if m != nil && m.socket != s { // of a socket that was closed
		set.drop(int(fd), m)
		m = nil
	}
	switch op {
	case syscall.EPOLL_CTL_ADD:
		if m != nil {
			return syscall.EEXIST
		}
		m = &member{socket: s}
		set.members[int(fd)] = m
		s.watchers.add(m)
	case syscall.EPOLL_CTL_MOD, syscall.EPOLL_CTL_DEL:
		if m == nil {
			return syscall.ENOENT
		}
	default:
		return syscall.EINVAL
	}
	if op == syscall.EPOLL_CTL_DEL {
		set.drop(int(fd), m)
	} else {
		m.events, m.data = e.events(), [8]byte(e.data())
		m.spent = false
		m.edge.Store(true)
	}
	set.changes.Add(1)
	set.waiting.notify()
	return 0
}

// wait is repoll_wait.
func (set *epollSet) wait(events []event, timeout time.Duration) (int, syscall.Errno) {
	began := time.Now()
	for left := timeout; ; {
		l := set.look()
		_, err := l.poll(left)
		if err != 0 {
			return 0, err
		}
		if n, err := set.report(l, events); n > 0 || err != 0 {
			return n, err
		}
		if timeout >= 0 {
			if left = timeout - time.Since(began); left <= 0 {
				return 0, 0
			}
		}
	}
}

// look returns a look at what is enabled in the set.
func (set *epollSet) look() *look {
	set.mu.Lock()
	defer set.mu.Unlock()
	l := &look{fds: []pollFD{{int32(set.fd), pollIn, 0}}, sockets: []*socket{nil}, members: []*member{nil}, set: set, changes: set.changes.Load()}
	for fd, m := range set.members {
		if m.socket.isClosed() {
			set.drop(fd, m)
			continue
		}
		if c := m.socket.conn.Load(); c != nil && m.conn == nil {
			m.conn = c
			sealed.Open(c.Internals()).Watch(m)
			m.edge.Store(true)
		}
		if !m.spent {
			l.fds = append(l.fds, pollFD{int32(fd), int16(m.events), 0})
			l.sockets = append(l.sockets, m.socket)
			l.members = append(l.members, m)
		}
	}
	return l
}

// report writes the events that a look has found.
func (set *epollSet) report(l *look, events []event) (int, syscall.Errno) {
	n := 0
	if l.fds[0].revents != 0 {
		k, _, err := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(set.fd), uintptr(unsafe.Pointer(&events[0])),
			uintptr((len(events)+1)/2), 0, 0, 0)
		if err != 0 {
			return 0, err
		}
		n = int(k)
	}
	set.mu.Lock()
	defer set.mu.Unlock()
	for i, m := range l.members {
		if n == len(events) {
			break
		}
		if m == nil || l.fds[i].revents == 0 || m.spent || set.members[int(l.fds[i].fd)] != m {
			continue
		}
		if m.events&epollET != 0 && !m.edge.Swap(false) {
			continue
		}
		m.spent = m.events&epollOneshot != 0
		binary.NativeEndian.PutUint32(events[n][:], uint32(uint16(l.fds[i].revents)))
		copy(events[n].data(), m.data[:])
		n++
	}
	return n, 0
}
