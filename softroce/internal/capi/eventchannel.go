// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/binary"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// eventChannel is a channel of connection manager events. Its descriptor is an
// eventfd whose counter is the number of events, as a semaphore. After a thread
// has read the semaphore, and before it takes the event, another thread may
// drop the event.
type eventChannel struct {
	c *librdmacm.EventChannel
	e *manager.Channel
}

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
		if c == nil || e == nil {
			return syscall.EINVAL
		}
		var err syscall.Errno
		*e, err = self().getCMEvent(c)
		return err
	}
}

// newEventChannel creates an event channel.
func (l *cmLibrary) newEventChannel() (*eventChannel, syscall.Errno) {
	fd, err := newSemaphore()
	if err != 0 {
		return nil, err
	}
	h := &eventChannel{c: alloc[librdmacm.EventChannel]()}
	h.c.Fd = int32(fd)
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	h.e = l.Manager().NewChannel(func(events int) {
		if events > 0 {
			syscall.Write(fd, one[:])
		}
		for range -events {
			takeOne(fd)
		}
	})
	l.eventChannels[h.c] = h
	return h, 0
}

// destroyEventChannel destroys a channel. As in the kernel, the IDs whose
// events go to the channel end as well.
func (l *cmLibrary) destroyEventChannel(h *eventChannel) {
	h.e.Destroy(l.Now())
	delete(l.eventChannels, h.c)
	syscall.Close(int(h.c.Fd))
	free(h.c)
}

// getCMEvent waits for an event, unless the descriptor is non-blocking. It does
// not hold the node's lock while it waits.
func (l *cmLibrary) getCMEvent(c *librdmacm.EventChannel) (*librdmacm.CmEvent, syscall.Errno) {
	for {
		var one [8]byte
		if _, err := syscall.Read(int(c.Fd), one[:]); err != nil {
			return nil, errno(err)
		}
		if e, err := l.takeCMEvent(c); e != nil || err != 0 {
			return e, err
		}
	}
}

// takeCMEvent takes the next event of a channel. It returns nil if there is no
// event that the program must see.
func (l *cmLibrary) takeCMEvent(c *librdmacm.EventChannel) (*librdmacm.CmEvent, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	h := l.eventChannels[c]
	if h == nil {
		return nil, syscall.EBADF
	}
	if e := h.e.Next(); e != nil {
		return l.show(e), 0
	}
	return nil, 0
}
