// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cloops

import (
	"runtime"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/dl"
)

/*
#include "loops.h"
*/
import "C"

// End is one end of a connection. Its requests are outside of Go's heap.
type End struct {
	QP             *libibverbs.Qp
	SendCQ, RecvCQ *libibverbs.Cq
	Channel        *libibverbs.CompChannel // of RecvCQ, for waiting
	Quiet, Loud    *libibverbs.SendWr      // sends without a completion, and with one
	Recv           *libibverbs.RecvWr
}

func (e *End) c() C.verbena_end {
	return C.verbena_end{
		qp: unsafe.Pointer(e.QP), cq: unsafe.Pointer(e.RecvCQ), sends: unsafe.Pointer(e.SendCQ),
		channel: unsafe.Pointer(e.Channel),
		quiet:   unsafe.Pointer(e.Quiet), loud: unsafe.Pointer(e.Loud), recv: unsafe.Pointer(e.Recv),
	}
}

// events has the functions for completion events, from where the channels are.
var events = dl.Library{
	Name: "libibverbs.so.1", Symbols: []string{"ibv_get_cq_event", "ibv_ack_cq_events"},
	Set: func(i int, f unsafe.Pointer) { C.verbena_loop_event_function(C.int32_t(i), f) },
}

// PingPong is the loop in C in which a message goes from a to b and back, every
// 16th with a completion. Both ends have a receive posted.
func PingPong(a, b *End, wait bool, rounds int) time.Duration {
	var w C.int32_t
	if wait {
		_ = events.Load() // C reports what is missing
		w = 1
	}
	ca, cb := a.c(), b.c()
	took := C.verbena_loop_pingpong(&ca, &cb, w, C.int64_t(rounds))
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return time.Duration(took)
}

// Stream posts a list of requests rounds times, in a loop in C, and returns how
// long that took; the time is negative after a failure. Only the last request
// of the list gives a completion. At most window postings of the list are in
// flight at a time.
func Stream(qp *libibverbs.Qp, cq *libibverbs.Cq, list *libibverbs.SendWr, window, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_stream(unsafe.Pointer(qp), unsafe.Pointer(cq), unsafe.Pointer(list),
		C.int32_t(window), C.int64_t(rounds)))
}
