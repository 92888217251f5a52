// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/datapath"
	"github.com/verbena-go/verbena/softroce/internal/detector"
	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/node"
)

// checking reports whether the memory of requests is checked, which check.c
// does. It does not change once the library exists.
var checking bool

// beginChecks starts the check if the program or the environment wants it.
// Programs that are built with -race have Go's race detector instead.
func beginChecks(check node.Check) {
	if check == node.NoCheck || detector.Enabled {
		return
	}
	datapath.SetOrigin(origin)
	if err := startCheck(check == node.AbortingCheck, datapath.Origin()); err != 0 {
		fmt.Fprintln(os.Stderr, "softroce: memory is not checked: process_vm_readv and process_vm_writev:", err)
		return
	}
	checking = true
}

// endChecks ends the check, since the program has created a shared receive
// queue that matches tags. The check does not know the receives of tag lists.
// So it cannot tell which other requests use the same memory.
func endChecks() {
	if stopCheck() {
		fmt.Fprintln(os.Stderr, "softroce: the check of memory ends: the program matches tags")
	}
}

// Kinds of queues, and flags of regions, as in c.h.
const (
	checkedSends = iota
	checkedReceives
	checkedShared
)

const (
	checkFills = 1 << iota
	checkOpen
	checkNever
)

// deviceID returns the number by which the check knows a device.
func deviceID(d *engine.Device) uint64 { return uint64(uintptr(unsafe.Pointer(d))) }

// check makes the queues of a queue pair known to the check.
func (l *library) check(q *qp) {
	if !checking {
		return
	}
	device := deviceID(l.deviceOf(q.c.Context))
	checkQueue(&q.soft().send, checkedSends, q.e.Number(), device)
	if q.c.Srq == nil {
		checkQueue(&q.soft().recv, checkedReceives, q.e.Number(), device)
	}
}

// uncheck ends the check of the requests in the queues of a queue pair, as the
// queue pair is reset. If it is gone, its queues are not checked any more.
func (q *qp) uncheck(gone bool) {
	if !checking {
		return
	}
	for _, w := range []*engine.WorkQueue{&q.soft().send, &q.soft().recv} {
		if gone {
			forgetQueue(w)
		} else {
			dropChecks(w)
		}
	}
}

// exempt exempts the requests of a queue pair from the check, also those of its
// shared receive queues: a counter tells the program of completions.
func (l *library) exempt(q *qp) {
	if !checking {
		return
	}
	exemptQueue(&q.soft().send)
	exemptQueue(&q.soft().recv)
	if s := l.srqs[q.c.Srq]; s != nil {
		exemptQueue(&s.soft().queue)
	}
	if q.xrcd == nil {
		return
	}
	q.xrcd.domain.exempt = true
	for _, s := range l.srqs {
		if s.xrcd != nil && s.xrcd.domain == q.xrcd.domain {
			exemptQueue(&s.soft().queue)
		}
	}
}

// checkShared makes the requests in a new shared receive queue known to the
// check.
func (l *library) checkShared(s *srq) {
	if !checking {
		return
	}
	if s.cq != nil && s.xrcd == nil { // it matches tags
		endChecks()
		return
	}
	checkQueue(&s.soft().queue, checkedShared, 0, deviceID(l.deviceOf(s.c.Context)))
	if s.xrcd != nil && s.xrcd.domain.exempt {
		exemptQueue(&s.soft().queue)
	}
}

// checkMemory makes a region known to the check, unless it has no memory of the
// program.
func (l *library) checkMemory(m *mr) {
	if !checking || !m.mapped {
		return
	}
	access, iova := m.access, m.iova
	const remote = libibverbs.IBV_ACCESS_REMOTE_WRITE | libibverbs.IBV_ACCESS_REMOTE_READ |
		libibverbs.IBV_ACCESS_REMOTE_ATOMIC | libibverbs.IBV_ACCESS_MW_BIND
	var flags int
	if access&libibverbs.IBV_ACCESS_ON_DEMAND != 0 {
		flags |= checkNever
	}
	if access&remote != 0 {
		flags |= checkOpen
	} else if access&libibverbs.IBV_ACCESS_LOCAL_WRITE != 0 {
		flags |= checkFills
	}
	if access&libibverbs.IBV_ACCESS_ZERO_BASED != 0 {
		iova = 0
	}
	m.checked = deviceID(l.deviceOf(m.c.Context))
	m.e.WatchWrites(checkRegion(m.checked, m.e.Key(), iova, uint64(uintptr(m.c.Addr)), m.c.Length, flags))
}

// uncheckMemory undoes checkMemory.
func (m *mr) uncheckMemory() {
	if m.checked != 0 {
		m.e.WatchWrites(nil)
		forgetRegion(m.checked, m.e.Key())
	}
}

// Writes checks the memory of a request before the device first writes to it.
func (l *library) Writes(ticket uint32) {
	if checking {
		checkWrites(ticket)
	}
}

// Overwritten ends the check of a request to whose memory the device has
// written n bytes that the completion will not count.
func (l *library) Overwritten(ticket, n uint32) {
	if checking {
		noteOverwritten(ticket, n)
	}
}

// Dropped ends the check of a request that will not complete.
func (l *library) Dropped(ticket uint32) {
	if checking {
		endCheck(ticket)
	}
}

// origins has the stacks of functions that have posted, as text for C.
var origins = struct {
	sync.Mutex
	texts map[[maxOrigin]uintptr]unsafe.Pointer
}{texts: map[[maxOrigin]uintptr]unsafe.Pointer{}}

// maxOrigin is the number of calls in a stack that are told.
const maxOrigin = 32

// origin returns the stack of the caller's caller, as text for C. It returns
// the same pointer for the same stack.
func origin() unsafe.Pointer {
	var calls [maxOrigin]uintptr
	runtime.Callers(4, calls[:]) // not those of packages capi and datapath
	origins.Lock()
	defer origins.Unlock()
	p := origins.texts[calls]
	if p == nil {
		text := describe(slices.Clone(calls[:])) // calls must stay on the stack
		p = allocMemory(1, uint64(len(text)+1))
		if p != nil {
			copy(unsafe.Slice((*byte)(p), len(text)), text)
		}
		origins.texts[calls] = p
	}
	return p
}

// describe returns calls in the form of the race detector.
func describe(calls []uintptr) string {
	var b strings.Builder
	for frames := runtime.CallersFrames(calls); ; {
		f, more := frames.Next()
		if f.PC != 0 && f.Function != "runtime.goexit" {
			fmt.Fprintf(&b, "  %s()\n      %s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return b.String()
		}
	}
}
