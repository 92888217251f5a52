// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Poller lets a node wait for its bell and its sockets at once, in its own
// thread. Go's netpoller would wake another thread, and that thread the node's.
type Poller struct {
	event int // an eventfd that wakes the sleeping thread

	mu      sync.Mutex
	sockets []*Socket
	asleep  bool      // whether a thread is in ppoll
	naps    uint64    // number of sleeps so far
	left    sync.Cond // uses mu; signals that asleep has become false

	// Only for the thread that sleeps and takes.
	polled []*Socket // the sockets of fds[1:]
	fds    []pollFD  // the first is event
}

// pollFD is struct pollfd.
type pollFD struct {
	fd      int32
	events  int16
	revents int16
}

const (
	pollIn  = 0x1
	pollOut = 0x4
)

// NewPoller returns a poller, in which the owner of the bell sleeps from now
// on. Other processes cannot ring that bell any more.
func NewPoller(b *Bell) (*Poller, error) {
	fd, _, e := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if e != 0 {
		return nil, os.NewSyscallError("eventfd2", e)
	}
	b.poller = &Poller{event: int(fd)}
	b.poller.left.L = &b.poller.mu
	return b.poller, nil
}

// Event returns the descriptor of an eventfd. A ringer that finds the bell's
// word Asleep wakes the node by adding to it.
func (p *Poller) Event() int { return p.event }

func (p *Poller) wake() {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1} // any number will do
	_, _ = syscall.Write(p.event, one[:])
}

func (p *Poller) add(s *Socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets = append(p.sockets, s)
}

// remove returns when no thread sleeps on the socket any more.
func (p *Poller) remove(s *Socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets = slices.DeleteFunc(p.sockets, func(o *Socket) bool { return o == s })
	if !p.asleep {
		return
	}
	p.wake()
	for naps := p.naps; p.asleep && p.naps == naps; { // a later sleep does not include the socket
		p.left.Wait()
	}
}

// sleep waits until there is work for Take, until wake is called, or until d
// has passed.
func (p *Poller) sleep(d time.Duration) {
	p.polled, p.fds = p.polled[:0], append(p.fds[:0], pollFD{fd: int32(p.event), events: pollIn})
	now := time.Now()
	p.mu.Lock()
	for _, s := range p.sockets {
		f := pollFD{fd: s.fd}
		if left := s.rest.until.Sub(now); left > 0 {
			d = min(d, left)
		} else {
			f.events |= pollIn
		}
		if s.Blocked() {
			f.events |= pollOut
		}
		if f.events != 0 {
			p.polled, p.fds = append(p.polled, s), append(p.fds, f)
		}
	}
	p.asleep = true
	p.naps++
	p.mu.Unlock()
	limit := syscall.NsecToTimespec(int64(d))
	n, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds[0])), uintptr(len(p.fds)),
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	p.mu.Lock()
	p.asleep = false
	p.left.Broadcast()
	p.mu.Unlock()
	if e != 0 && e != syscall.EINTR { // a sandbox, or a limit of descriptors that was set later
		time.Sleep(min(d, minPause))
		for i, f := range p.fds {
			p.fds[i].revents = f.events // they may be ready
		}
		return
	}
	if e != 0 || n == 0 {
		p.polled, p.fds = p.polled[:0], p.fds[:0]
		return
	}
	if p.fds[0].revents != 0 {
		var count [8]byte
		_, _ = syscall.Read(p.event, count[:])
	}
}

// Look takes what is there now.
func (p *Poller) Look() {
	p.sleep(0)
	p.Take()
}

// Take passes on what the last Sleep has found, by the functions that the
// sockets' Start got. The owner of the bell calls it.
func (p *Poller) Take() {
	for i, s := range p.polled {
		f := p.fds[i+1]
		if f.revents&pollOut != 0 {
			s.Proceed()
		}
		if f.revents&^pollOut != 0 {
			s.rest.after(s.take())
		}
	}
	p.polled, p.fds = p.polled[:0], p.fds[:0]
}

// A socket that cannot receive pauses for minPause, then for twice as long each
// time, up to maxPause.
const (
	minPause = time.Millisecond
	maxPause = time.Second
)

// rest is a socket's pause in receiving.
type rest struct {
	until time.Time
	pause time.Duration
}

// after records the result of a receive.
func (r *rest) after(e syscall.Errno) {
	if e == 0 || e == syscall.EAGAIN { // another thread may have received it
		*r = rest{}
		return
	}
	r.pause = min(max(minPause, 2*r.pause), maxPause)
	r.until = time.Now().Add(r.pause)
}
