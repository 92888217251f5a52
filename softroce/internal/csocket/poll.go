// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/internal/sealed"
	"github.com/verbena-go/verbena/rsocket"
)

// pollFD is struct pollfd.
type pollFD struct {
	fd              int32
	events, revents int16
}

// The events of poll(2).
const (
	pollIn     = 0x1
	pollOut    = 0x4
	pollErr    = 0x8
	pollHup    = 0x10
	pollNval   = 0x20
	pollRdHup  = 0x2000
	pollAlways = pollErr | pollHup | pollNval // reported whether they were asked for or not
)

// revents returns what poll(2) reports for a socket that waits for events. If
// refresh is true, it takes completions before that.
func (s *socket) revents(events int16, refresh bool) int16 {
	if s.isClosed() {
		return pollNval
	}
	if s.isDatagram {
		return s.datagramEvents(refresh) & (events | pollAlways)
	}
	got := int16(0)
	if c := s.conn.Load(); c != nil {
		now := sealed.Open(c.Internals()).Readiness(refresh)
		if now.Readable {
			got |= pollIn
		}
		if now.Writable {
			got |= pollOut
		}
		if now.Ended {
			got |= pollRdHup
		}
		if now.HungUp && !now.Unread { // programs, such as C's rstream, would leave what has arrived
			got |= pollHup
		}
		if now.Err != nil {
			got |= pollErr
		}
		return got & (events | pollAlways)
	}
	s.mu.Lock()
	if s.conn.Load() != nil { // the socket has connected meanwhile
		s.mu.Unlock()
		return s.revents(events, refresh)
	}
	defer s.mu.Unlock()
	switch s.state {
	case listening:
		if len(s.accepted) > 0 {
			got = pollIn
		} else if s.err != 0 {
			got = pollIn | pollErr
		}
	case connecting:
	case failed:
		got = pollIn | pollOut | pollErr | pollHup
	default:
		got = pollOut | pollHup // as for TCP
	}
	return got & (events | pollAlways)
}

// waiter wakes a thread that waits in poll(2).
type waiter struct {
	fd       int
	pending  atomic.Bool // whether a socket may have changed since the thread cleared it
	sleeping atomic.Bool // whether the thread is in poll(2), or about to be
}

// newEventFD returns an eventfd that does not block.
func newEventFD() (int, syscall.Errno) {
	fd, _, err := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	return int(fd), err
}

// one is what ring writes.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// ring adds 1 to the counter of an eventfd. If the eventfd is never read, it
// takes 2^64-2 rings to fill the counter.
func ring(fd int) { syscall.Write(fd, one) }

// spare are waiters that no thread uses.
var spare = make(chan *waiter, 64)

func newWaiter() (*waiter, syscall.Errno) {
	select {
	case w := <-spare:
		return w, 0
	default:
	}
	fd, err := newEventFD()
	return &waiter{fd: fd}, err
}

// free makes the waiter usable by others.
func (w *waiter) free() {
	select {
	case spare <- w:
	default:
		syscall.Close(w.fd)
	}
}

// Notify makes the thread look at its sockets again.
func (w *waiter) Notify() {
	w.pending.Store(true)
	if w.sleeping.Load() {
		ring(w.fd)
	}
}

// look is one call that looks at sockets and other descriptors, and waits for
// one of them.
type look struct {
	fds     []pollFD
	sockets []*socket // for each of fds, its socket, or nil
	own     []ownConn // for each of fds, the connection that the thread waits for
	real    []pollFD  // what poll(2) gets: waiter, other descriptors, channels of connections
	waiter  *waiter
}

// ownConn is a connection that a thread waits for.
type ownConn struct {
	conn *rsocket.Conn // nil: there is no connection yet
	held bool          // whether the thread has the connection's pump

	packets *rsocket.PacketConn // whose completions goroutines take for the thread, or nil
}

// poll is rpoll. A negative timeout means none.
func poll(fds []pollFD, timeout time.Duration) (int, syscall.Errno) {
	l := look{fds: fds, sockets: make([]*socket, len(fds))}
	table.RLock()
	for i := range fds {
		l.sockets[i] = table.sockets[int(fds[i].fd)]
	}
	table.RUnlock()
	return l.poll(timeout)
}

// await waits until one of the events, or an error, is there for the socket. 0
// means no timeout; after it, await returns EAGAIN.
func (s *socket) await(events int16, timeout time.Duration) syscall.Errno {
	if timeout <= 0 {
		timeout = -1
	}
	deadline := time.Now().Add(timeout)
	for {
		fds := [1]pollFD{{int32(s.fd), events, 0}}
		l := look{fds: fds[:], sockets: []*socket{s}}
		n, err := l.poll(timeout)
		switch {
		case err == syscall.EINTR && restarts():
		case err != 0:
			return err
		case n > 0:
			return 0
		case timeout > 0 && time.Until(deadline) <= 0:
			return syscall.EAGAIN
		}
		if timeout > 0 {
			timeout = max(time.Until(deadline), 0)
		}
	}
}

func (l *look) poll(timeout time.Duration) (int, syscall.Errno) {
	began := time.Now()
	n, err := l.others()
	if err != 0 {
		return 0, err
	}
	n += l.check(true)
	if n > 0 || timeout == 0 {
		return n, 0
	}
	if l.waiter, err = newWaiter(); err != 0 {
		return 0, err
	}
	for _, s := range l.sockets {
		if s != nil {
			s.watchers.add(l.waiter)
		}
	}
	l.own = make([]ownConn, len(l.fds))
	defer l.end()
	for {
		for i, s := range l.sockets {
			if s != nil {
				l.arm(i, s)
			}
		}
		l.waiter.pending.Store(false) // what has changed until now is seen by check
		if k := l.check(false); n+k > 0 {
			return n + k, 0
		}
		left := time.Duration(-1)
		if timeout > 0 {
			if left = timeout - time.Since(began); left <= 0 {
				return 0, 0
			}
		}
		if n, err = l.sleep(left); err != 0 {
			return 0, err
		}
	}
}

// end gives up what the call holds.
func (l *look) end() {
	for i, s := range l.sockets {
		if s == nil {
			continue
		}
		s.watchers.remove(l.waiter)
		if own := l.own[i]; own.held {
			sealed.Open(own.conn.Internals()).Release()
		}
		if p := l.own[i].packets; p != nil {
			sealed.Open(p.Internals()).Unwatch()
		}
	}
	l.waiter.free()
}

// arm takes the completions of a socket's connection and asks for an event,
// unless another thread does.
func (l *look) arm(i int, s *socket) {
	own := &l.own[i]
	if p := s.packets.Load(); p != nil && own.packets == nil {
		own.packets = p
		sealed.Open(p.Internals()).Watch()
	}
	c := s.conn.Load()
	if c == nil || s.isClosed() {
		return
	}
	internals := sealed.Open(c.Internals())
	own.conn = c
	if !own.held {
		own.held = internals.Hold()
	}
	if own.held {
		internals.Arm()
	}
}

// others looks at the descriptors that are no sockets, and returns how many
// have events.
func (l *look) others() (int, syscall.Errno) {
	l.real = append(l.real[:0], pollFD{fd: -1})
	for i, s := range l.sockets {
		if s == nil {
			l.real = append(l.real, pollFD{l.fds[i].fd, l.fds[i].events, 0})
		}
	}
	if len(l.real) == 1 {
		return 0, 0
	}
	if err := ppoll(l.real, 0); err != 0 {
		return 0, err
	}
	return l.gather(), 0
}

// gather copies what poll(2) has reported for the descriptors that are no
// sockets.
func (l *look) gather() int {
	n, at := 0, 1
	for i, s := range l.sockets {
		if s == nil {
			l.fds[i].revents = l.real[at].revents
			at++
			if l.fds[i].revents != 0 {
				n++
			}
		}
	}
	return n
}

// check looks at the sockets, and returns how many have events.
func (l *look) check(refresh bool) int {
	n := 0
	for i, s := range l.sockets {
		if s != nil {
			if l.fds[i].revents = s.revents(l.fds[i].events, refresh); l.fds[i].revents != 0 {
				n++
			}
		}
	}
	return n
}

// sleep waits in poll(2), and returns how many descriptors that are no sockets
// have events.
func (l *look) sleep(timeout time.Duration) (int, syscall.Errno) {
	l.real = append(l.real[:0], pollFD{fd: int32(l.waiter.fd), events: pollIn})
	for i, s := range l.sockets {
		if s == nil {
			l.real = append(l.real, pollFD{l.fds[i].fd, l.fds[i].events, 0})
		}
	}
	first := len(l.real)
	for i := range l.own {
		if l.own[i].held {
			fd, err := sealed.Open(l.own[i].conn.Internals()).Descriptor()
			if err != nil && !errors.Is(err, os.ErrClosed) { // what closes the connection has notified the waiter
				return 0, errnoOf(err)
			}
			l.real = append(l.real, pollFD{int32(fd), pollIn, 0})
		}
	}
	l.waiter.sleeping.Store(true)
	var err syscall.Errno
	if !l.waiter.pending.Load() {
		err = ppoll(l.real, timeout)
	}
	l.waiter.sleeping.Store(false)
	if l.real[0].revents != 0 || err != 0 {
		var count [8]byte
		syscall.Read(l.waiter.fd, count[:])
	}
	if err != 0 {
		return 0, err
	}
	at := first
	for i := range l.own {
		if l.own[i].held {
			if l.real[at].revents != 0 {
				sealed.Open(l.own[i].conn.Internals()).TakeEvents()
			}
			at++
		}
	}
	return l.gather(), 0
}

// waitMask returns the signals that are blocked while a thread waits. The
// signal with which Go's runtime interrupts threads is among them, so that only
// the program's signals end the wait.
func waitMask() uint64 {
	var mask uint64
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, 0, uintptr(unsafe.Pointer(&mask)), unsafe.Sizeof(mask), 0, 0)
	return mask | 1<<(syscall.SIGURG-1)
}

// ppoll is ppoll(2). A negative timeout means none.
func ppoll(fds []pollFD, timeout time.Duration) syscall.Errno {
	mask := waitMask()
	var t *syscall.Timespec
	if timeout >= 0 {
		left := syscall.NsecToTimespec(int64(timeout))
		t = &left
	}
	_, _, err := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)),
		uintptr(unsafe.Pointer(t)), uintptr(unsafe.Pointer(&mask)), unsafe.Sizeof(mask), 0)
	return err
}

// selectSets is rselect. The sets have a bit for each descriptor below n, and
// may be nil.
func selectSets(n int, read, write, except []uintptr, timeout time.Duration) (int, syscall.Errno) {
	const bits = 8 * int(unsafe.Sizeof(uintptr(0)))
	has := func(set []uintptr, fd int) bool { return set != nil && set[fd/bits]>>(fd%bits)&1 != 0 }
	var fds []pollFD
	for fd := range n {
		var events int16
		if has(read, fd) {
			events |= pollIn
		}
		if has(write, fd) {
			events |= pollOut
		}
		if events != 0 || has(except, fd) {
			fds = append(fds, pollFD{int32(fd), events, 0})
		}
	}
	if _, err := poll(fds, timeout); err != 0 {
		return 0, err
	}
	for _, p := range fds {
		if p.revents&pollNval != 0 {
			return 0, syscall.EBADF
		}
	}
	total := 0
	keep := func(set []uintptr, mask int16) {
		for _, p := range fds {
			fd := int(p.fd)
			switch {
			case !has(set, fd):
			case p.revents&mask != 0:
				total++
			default:
				set[fd/bits] &^= 1 << (fd % bits)
			}
		}
	}
	keep(read, pollIn|pollHup|pollErr)
	keep(write, pollOut|pollErr)
	keep(except, 0x2) // POLLPRI
	return total, 0
}
