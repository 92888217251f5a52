// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/internal/cmevent"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// eventChannel is a channel of connection manager events. Its descriptor is an
// eventfd whose counter is the number of events, as a semaphore. After a thread
// has read the semaphore, and before it takes the event, another thread may
// drop the event. A channel that a Go program has opened has no descriptor.
type eventChannel struct {
	c       *librdmacm.EventChannel
	e       *manager.Channel
	l       *cmLibrary
	wake    func() bool  // wakes the goroutine that reads the channel, and reports whether it has; nil: the descriptor does
	pending atomic.Int32 // number of events; written with the node's mutex held
}

const noEventfd = -1

func init() {
	cm.CreateEventChannel = func() (*librdmacm.EventChannel, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		h, err := l.newEventChannel()
		if err != 0 {
			return nil, err
		}
		return h.c, 0
	}
	cm.DestroyEventChannel = func(c *librdmacm.EventChannel) {
		l := self()
		l.Lock()
		defer l.Unlock()
		if h := l.eventChannels[c]; h != nil {
			l.destroyEventChannel(h)
		}
	}
	cm.GetCmEvent = func(c *librdmacm.EventChannel, e **librdmacm.CmEvent) syscall.Errno {
		l := self()
		if e == nil {
			return l.knowsChannel(c)
		}
		var err syscall.Errno
		*e, err = l.takeCMEvent(c)
		return err
	}
}

// newEventChannel creates an event channel.
func (l *cmLibrary) newEventChannel() (*eventChannel, syscall.Errno) {
	fd, err := newSemaphore()
	if err != 0 {
		return nil, err
	}
	h := &eventChannel{c: alloc[librdmacm.EventChannel](), l: l}
	h.c.Fd = int32(fd)
	h.e = l.Manager().NewChannel(h.notify)
	l.eventChannels[h.c] = h
	return h, 0
}

// one is what adds 1 to an eventfd.
var one = binary.NativeEndian.AppendUint64(nil, 1)

// notify tells the program that so many events were added, or that they were
// removed if the number is negative.
func (h *eventChannel) notify(events int) {
	h.pending.Store(int32(h.e.Len()))
	if h.wake != nil {
		if events > 0 && h.wake() {
			h.l.Woke()
		}
		return
	}
	if events > 0 {
		syscall.Write(int(h.c.Fd), one)
	}
	for range -events {
		takeOne(int(h.c.Fd))
	}
}

// openEventChannel closes the descriptor of a channel, and makes the channel
// call wake for its events.
func (l *cmLibrary) openEventChannel(c *librdmacm.EventChannel, wake func() bool) cmevent.Channel {
	l.Lock()
	defer l.Unlock()
	h := l.eventChannels[c]
	if h == nil {
		return nil
	}
	syscall.Close(int(c.Fd))
	c.Fd, h.wake = noEventfd, wake
	return h
}

// Pending implements cmevent.Channel.
func (h *eventChannel) Pending() bool { return h.pending.Load() > 0 }

// Next implements cmevent.Channel.
func (h *eventChannel) Next() *librdmacm.CmEvent {
	h.l.Lock()
	defer h.l.Unlock()
	for {
		e := h.e.Next()
		h.pending.Store(int32(h.e.Len()))
		if e == nil {
			return nil
		}
		if shown := h.l.show(e); shown != nil {
			return shown
		}
	}
}

// Ack implements cmevent.Channel.
func (h *eventChannel) Ack(e *librdmacm.CmEvent) {
	h.l.Lock()
	defer h.l.Unlock()
	h.l.ackCMEvent(e)
}

// destroyEventChannel destroys a channel. As in the kernel, the IDs whose
// events go to the channel end as well.
func (l *cmLibrary) destroyEventChannel(h *eventChannel) {
	h.e.Destroy(l.Now())
	delete(l.eventChannels, h.c)
	if h.c.Fd != noEventfd {
		syscall.Close(int(h.c.Fd))
	}
	free(h.c)
}

// getCMEvent waits for an event of a synchronous ID, whose descriptor is fd. It
// does not hold the node's lock while it waits.
func (l *cmLibrary) getCMEvent(c *librdmacm.EventChannel, fd int32) (*librdmacm.CmEvent, syscall.Errno) {
	for {
		var one [8]byte
		if _, err := syscall.Read(int(fd), one[:]); err != nil {
			return nil, errno(err)
		}
		if e, err := l.takeCMEvent(c); err != syscall.EAGAIN {
			return e, err
		}
	}
}

// knowsChannel returns 0 if the program has created c, and c has a descriptor.
func (l *cmLibrary) knowsChannel(c *librdmacm.EventChannel) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	if h := l.eventChannels[c]; h == nil || h.c.Fd == noEventfd {
		return syscall.EBADF
	}
	return 0
}

// takeCMEvent takes the next event of a channel, for which the semaphore was
// read. It returns EAGAIN if there is no event that the program must see.
func (l *cmLibrary) takeCMEvent(c *librdmacm.EventChannel) (*librdmacm.CmEvent, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	h := l.eventChannels[c]
	if h == nil {
		return nil, syscall.EBADF
	}
	e := h.e.Next()
	h.pending.Store(int32(h.e.Len()))
	if e != nil {
		if shown := l.show(e); shown != nil {
			return shown, 0
		}
	}
	return nil, syscall.EAGAIN
}
