// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// compCounter is the engine's counter for one of the program's struct
// ibv_comp_cntr.
type compCounter struct{ e *engine.CompletionCounter }

func init() {
	verbs.QueryCompCntrCaps = func(c *libibverbs.Context, out *libibverbs.CompCntrCaps, size uint64) syscall.Errno {
		caps, err := locked(c, (*engine.Device).CompletionCounterCaps)
		if err == 0 {
			fill(unsafe.Pointer(out), size, &caps)
		}
		return err
	}
	verbs.CreateCompCntr = func(c *libibverbs.Context, a *libibverbs.CompCntrInitAttr) (*libibverbs.CompCntr, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.createCounter(c, a)
	}
	verbs.DestroyCompCntr = func(c *libibverbs.CompCntr) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.destroyCounter(c)
	}
	verbs.SetCompCntr = func(c *libibverbs.CompCntr, v uint64) syscall.Errno {
		return withCounter(c, func(done, _ *uint64) { *done = v })
	}
	verbs.SetErrCompCntr = func(c *libibverbs.CompCntr, v uint64) syscall.Errno {
		return withCounter(c, func(_, failed *uint64) { *failed = v })
	}
	verbs.IncCompCntr = func(c *libibverbs.CompCntr, n uint64) syscall.Errno {
		return withCounter(c, func(done, _ *uint64) { *done += n })
	}
	verbs.IncErrCompCntr = func(c *libibverbs.CompCntr, n uint64) syscall.Errno {
		return withCounter(c, func(_, failed *uint64) { *failed += n })
	}
	verbs.ReadCompCntr = func(c *libibverbs.CompCntr, v *uint64) syscall.Errno {
		return withCounter(c, func(done, _ *uint64) { *v = *done })
	}
	verbs.ReadErrCompCntr = func(c *libibverbs.CompCntr, v *uint64) syscall.Errno {
		return withCounter(c, func(_, failed *uint64) { *v = *failed })
	}
	verbs.QpAttachCompCntr = func(c *libibverbs.Qp, n *libibverbs.CompCntr, a *libibverbs.QpAttachCompCntrAttr) syscall.Errno {
		return withQP(c, func(l *library, q *qp) error {
			counter := l.counters[n]
			if counter == nil || n.Context != c.Context || a == nil {
				return syscall.EINVAL
			}
			if err := q.e.AttachCounter(counter.e, a); err != nil {
				return err
			}
			l.exempt(q)
			return nil
		})
	}
}

func (l *library) createCounter(c *libibverbs.Context, a *libibverbs.CompCntrInitAttr) (*libibverbs.CompCntr, syscall.Errno) {
	device := l.deviceOf(c)
	if device == nil || a == nil {
		return nil, syscall.EINVAL
	}
	e, err := device.CreateCompletionCounter(a)
	if err != nil {
		return nil, errno(err)
	}
	counter := alloc[libibverbs.CompCntr]()
	l.handle++
	counter.Context, counter.Handle = c, l.handle
	l.counters[counter] = &compCounter{e}
	return counter, 0
}

func (l *library) destroyCounter(c *libibverbs.CompCntr) syscall.Errno {
	counter := l.counters[c]
	if counter == nil {
		return syscall.EINVAL
	}
	if err := counter.e.Destroy(); err != nil {
		return errno(err)
	}
	delete(l.counters, c)
	free(c)
	return 0
}

// closeCounter ends a counter as its context is being closed. The counter may
// be attached to a queue pair that other contexts have open.
func (l *library) closeCounter(c *libibverbs.CompCntr) syscall.Errno {
	l.counters[c].e.Detach()
	return l.destroyCounter(c)
}

// withCounter calls f with the values of a counter. The device does its work
// first, since a program that only reads counters polls no queue.
func withCounter(c *libibverbs.CompCntr, f func(done, failed *uint64)) syscall.Errno {
	l := self()
	l.Help(nil)
	l.Lock()
	defer l.Unlock()
	counter := l.counters[c]
	if counter == nil {
		return syscall.EINVAL
	}
	done, failed, err := counter.e.Values()
	if err == nil {
		f(done, failed)
	}
	return errno(err)
}
