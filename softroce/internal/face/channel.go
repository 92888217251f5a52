// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"encoding/binary"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// channel is a completion channel: a pipe of the ids of completion queues.
type channel struct {
	c       *libibverbs.CompChannel
	end     int      // of the pipe, to write
	waiting []uint64 // ids that had no room in the pipe
}

func init() {
	verbs.CreateCompChannel = func(c *libibverbs.Context) (*libibverbs.CompChannel, syscall.Errno) { return self().createChannel(c) }
	verbs.DestroyCompChannel = func(c *libibverbs.CompChannel) syscall.Errno {
		n := self()
		n.lock()
		defer n.unlock()
		return n.destroyChannel(c)
	}
}

func (n *node) createChannel(c *libibverbs.Context) (*libibverbs.CompChannel, syscall.Errno) {
	n.lock()
	defer n.unlock()
	if n.contexts[c] == nil {
		return nil, syscall.EINVAL
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
	n.channels[h.c] = h
	return h.c, 0
}

func (n *node) destroyChannel(c *libibverbs.CompChannel) syscall.Errno {
	h := n.channels[c]
	switch {
	case h == nil:
		return syscall.EINVAL
	case c.Refcnt > 0:
		return syscall.EBUSY
	}
	delete(n.channels, c)
	n.late = slices.DeleteFunc(n.late, func(l *channel) bool { return l == h })
	syscall.Close(h.end)
	syscall.Close(int(c.Fd))
	free(c)
	return 0
}

// completionEvent tells whoever waits at the queue's channel.
func (n *node) completionEvent(e *engine.CQ) {
	q := n.byCQ[e]
	h := n.channels[q.c.Channel]
	if h == nil {
		return
	}
	id := uint64(q.soft().id)
	if len(h.waiting) == 0 {
		if h.tell(id) {
			return
		}
		n.late = append(n.late, h)
	}
	h.waiting = append(h.waiting, id)
}

// tell writes an id. It reports whether there was room.
func (h *channel) tell(id uint64) bool {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], id)
	_, err := syscall.Write(h.end, b[:])
	return err != syscall.EAGAIN
}

// tell writes the ids that had no room. It reports whether there are still some.
func (n *node) tell() bool {
	n.late = slices.DeleteFunc(n.late, func(h *channel) bool {
		for len(h.waiting) > 0 && h.tell(h.waiting[0]) {
			h.waiting = h.waiting[1:]
		}
		return len(h.waiting) == 0
	})
	return len(n.late) > 0
}
