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
// the queue.
type channel struct {
	c       *libibverbs.CompChannel
	end     int      // writing end of the pipe
	waiting []uint64 // IDs that did not fit into the pipe yet
}

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
	if !l.isOpen(c) {
		return nil, syscall.EINVAL
	}
	if l.deviceOf(c).Removed() {
		return nil, syscall.EIO
	}
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return nil, errno(err)
	}
	if err := syscall.SetNonblock(ends[1], true); err != nil {
		syscall.Close(ends[0])
		syscall.Close(ends[1])
		return nil, errno(err)
	}
	h := &channel{c: alloc[libibverbs.CompChannel](), end: ends[1]}
	h.c.Context, h.c.Fd = c, int32(ends[0])
	l.channels[h.c] = h
	return h.c, 0
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
	syscall.Close(h.end)
	syscall.Close(int(c.Fd))
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
	if len(h.waiting) == 0 {
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
