// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// channel is a completion channel. Its descriptor is the reading end of a pipe.
// The device writes the ID of a completion queue to the pipe for each event of
// the queue. A Go program's channel has no pipe before the program needs the
// descriptor.
type channel struct {
	c       *libibverbs.CompChannel
	end     int      // writing end of the pipe, or -1
	waiting []uint64 // IDs that did not fit into the pipe yet
}

const noPipe = -1

func init() {
	verbs.CreateCompChannel = func(c *libibverbs.Context) (*libibverbs.CompChannel, syscall.Errno) { return self().createChannel(c) }
	verbs.DestroyCompChannel = func(c *libibverbs.CompChannel) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.destroyChannel(c)
	}
}

func (l *library) createChannel(c *libibverbs.Context) (*libibverbs.CompChannel, syscall.Errno) {
	l.Lock()
	defer l.Unlock()
	h, err := l.addChannel(c)
	if err != 0 {
		return nil, err
	}
	if err := h.open(); err != 0 {
		l.destroyChannel(h.c)
		return nil, err
	}
	return h.c, 0
}

// newChannel creates a channel without a pipe. It returns nil if that fails.
func (l *library) newChannel(c *libibverbs.Context) *libibverbs.CompChannel {
	l.Lock()
	defer l.Unlock()
	h, err := l.addChannel(c)
	if err != 0 {
		return nil
	}
	return h.c
}

func (l *library) addChannel(c *libibverbs.Context) (*channel, syscall.Errno) {
	if !l.isOpen(c) {
		return nil, syscall.EINVAL
	}
	if l.deviceOf(c).Removed() {
		return nil, syscall.EIO
	}
	h := &channel{c: alloc[libibverbs.CompChannel](), end: noPipe}
	h.c.Context, h.c.Fd = c, noPipe
	l.channels[h.c] = h
	return h, 0
}

// openChannel makes the pipe of a channel from newChannel.
func (l *library) openChannel(c *libibverbs.CompChannel) syscall.Errno {
	l.Lock()
	defer l.Unlock()
	h := l.channels[c]
	if h == nil {
		return syscall.EINVAL
	}
	if err := h.open(); err != 0 {
		return err
	}
	if len(h.waiting) > 0 {
		l.late = append(l.late, h)
		l.SendLate()
	}
	return 0
}

// open makes the pipe.
func (h *channel) open() syscall.Errno {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return errno(err)
	}
	if err := syscall.SetNonblock(ends[1], true); err != nil {
		syscall.Close(ends[0])
		syscall.Close(ends[1])
		return errno(err)
	}
	h.c.Fd, h.end = int32(ends[0]), ends[1]
	return 0
}

func (l *library) destroyChannel(c *libibverbs.CompChannel) syscall.Errno {
	h := l.channels[c]
	switch {
	case h == nil:
		return syscall.EINVAL
	case c.Refcnt > 0:
		return syscall.EBUSY
	}
	delete(l.channels, c)
	l.late = slices.DeleteFunc(l.late, func(l *channel) bool { return l == h })
	if h.end != noPipe {
		syscall.Close(h.end)
		syscall.Close(int(c.Fd))
	}
	free(c)
	return 0
}

// CompletionEvent wakes the goroutine that waits for the completion queue e, or
// sends an event of e to the channel of e, or both, as armed says.
func (l *library) CompletionEvent(e *engine.CQ, armed uint32) {
	q := l.byCQ[e]
	if armed&engine.ArmedWake != 0 {
		if q.wake() {
			l.Woke()
		}
	}
	if armed&engine.ArmedEvent == 0 {
		return
	}
	h := l.channels[q.c.Channel]
	if h == nil {
		return
	}
	id := q.soft().id
	if len(h.waiting) == 0 && h.end != noPipe {
		if h.write(id) {
			return
		}
		l.late = append(l.late, h)
	}
	h.waiting = append(h.waiting, id)
}

// write writes an ID to the pipe. It returns false if the pipe is full.
func (h *channel) write(id uint64) bool {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], id)
	_, err := syscall.Write(h.end, b[:])
	return err != syscall.EAGAIN
}

// SendLate writes the waiting IDs to their pipes. left reports whether some
// still do not fit.
func (l *library) SendLate() (left bool) {
	l.late = slices.DeleteFunc(l.late, func(h *channel) bool {
		for len(h.waiting) > 0 && h.write(h.waiting[0]) {
			h.waiting = h.waiting[1:]
		}
		return len(h.waiting) == 0
	})
	return len(l.late) > 0
}
