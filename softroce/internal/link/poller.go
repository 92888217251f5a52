// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Poller lets one thread of the node wait for the node's bell and its sockets
// at the same time.
type Poller struct {
	bell *Bell

	mu      sync.Mutex
	sockets []*Socket
	asleep  bool      // whether a thread is in ppoll
	sleeps  uint64    // number of calls of ppoll
	left    sync.Cond // uses mu; signals that asleep has become false

	// Only the thread that calls sleep and Take uses polled and fds.
	polled []*Socket // sockets of fds[1:]
	fds    []pollFD  // descriptors for ppoll; the first is the eventfd of the bell
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
	pollErr = 0x8
)

// NewPoller returns a poller. From then on, Sleep of the bell sleeps in the
// poller.
func NewPoller(b *Bell) (*Poller, error) {
	if b.sleeps.fd < 0 {
		return nil, errors.New("cannot create an eventfd")
	}
	p := &Poller{bell: b}
	p.left.L = &p.mu
	b.poller = p
	return p, nil
}

// add lets the poller wait for a socket.
func (p *Poller) add(s *Socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets = append(p.sockets, s)
}

// remove makes the poller forget a socket. It returns when no thread sleeps on
// the socket any more.
func (p *Poller) remove(s *Socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets = slices.DeleteFunc(p.sockets, func(o *Socket) bool { return o == s })
	if !p.asleep {
		return
	}
	p.bell.Wake()
	for sleeps := p.sleeps; p.asleep && p.sleeps == sleeps; { // later sleeps do not use the socket
		p.left.Wait()
	}
}

// sleep waits until Take has work, until the bell's wake is called, or until
// the time d has passed.
func (p *Poller) sleep(d time.Duration) {
	p.polled, p.fds = p.polled[:0], append(p.fds[:0], pollFD{fd: int32(p.bell.sleeps.fd), events: pollIn})
	now := time.Now()
	p.mu.Lock()
	for _, s := range p.sockets {
		f := pollFD{fd: s.fd}
		if left := s.pause.until.Sub(now); left > 0 {
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
	p.sleeps++
	p.mu.Unlock()
	limit := syscall.NsecToTimespec(int64(d))
	n, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&p.fds[0])), uintptr(len(p.fds)),
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	p.mu.Lock()
	p.asleep = false
	p.left.Broadcast()
	p.mu.Unlock()
	if e != 0 && e != syscall.EINTR { // a sandbox refuses the call, or the limit of descriptors was lowered
		time.Sleep(min(d, minPause))
		for i, f := range p.fds {
			p.fds[i].revents = f.events | pollErr // all of them may be ready
		}
		return
	}
	if e != 0 || n == 0 {
		p.polled, p.fds = p.polled[:0], p.fds[:0]
		return
	}
	if p.fds[0].revents != 0 {
		var count [8]byte
		_, _ = syscall.Read(p.bell.sleeps.fd, count[:])
	}
}

// nap waits until the bell's wake is called, or until the time d has passed. It
// may return early.
func (p *Poller) nap(d time.Duration) {
	fd := pollFD{fd: int32(p.bell.sleeps.fd), events: pollIn}
	limit := syscall.NsecToTimespec(int64(d))
	n, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	switch {
	case e == syscall.EINTR:
	case e != 0: // a sandbox refuses the call, or the limit of descriptors was lowered
		time.Sleep(min(d, minPause))
	case n != 0:
		var count [8]byte
		_, _ = syscall.Read(p.bell.sleeps.fd, count[:])
	}
}

// Look receives from all sockets that are ready now. It does not wait.
func (p *Poller) Look() {
	p.sleep(0)
	p.Take()
}

// Take receives from the sockets that the last sleep has found ready, and calls
// the functions that were passed to Start of these sockets. Only the thread
// that sleeps may call it.
func (p *Poller) Take() {
	for i, s := range p.polled {
		f := p.fds[i+1]
		if f.revents&pollOut != 0 {
			s.Proceed()
		}
		if f.revents&^pollOut != 0 {
			s.pause.after(s.take(f.revents&pollErr != 0))
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

// receivePause is a socket's pause in receiving, after the system has refused
// to receive.
type receivePause struct {
	until time.Time     // end of the pause
	pause time.Duration // length of the last pause; 0: none
}

// after handles the result e of a receive. It starts a pause if e is an error,
// and otherwise ends the pauses.
func (r *receivePause) after(e syscall.Errno) {
	if e == 0 || e == syscall.EAGAIN { // EAGAIN: another thread may have received it
		*r = receivePause{}
		return
	}
	r.pause = min(max(minPause, 2*r.pause), maxPause)
	r.until = time.Now().Add(r.pause)
}
