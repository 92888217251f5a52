// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"fmt"
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
func beginChecks() {
	check := node.ChosenCheck()
	if check == node.NoCheck || detector.Enabled {
		return
	}
	checking = true
	datapath.SetOrigin(origin)
	startCheck(check == node.AbortingCheck, datapath.Origin())
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

// exempt exempts the queues of a queue pair from the check, also the shared
// receive queue s if it is not nil: a counter tells the program of completions.
func (q *qp) exempt(s *srq) {
	if !checking {
		return
	}
	exemptQueue(&q.soft().send)
	exemptQueue(&q.soft().recv)
	if s != nil {
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
