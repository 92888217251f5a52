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

// End is one end of a connection. Its requests must be outside of Go's heap.
type End struct {
	QP             *libibverbs.Qp
	SendCQ, RecvCQ *libibverbs.Cq
	Channel        *libibverbs.CompChannel // channel of RecvCQ
	Quiet, Loud    *libibverbs.SendWr      // a send without a completion, and one with a completion
	Recv           *libibverbs.RecvWr
}

func (e *End) c() C.verbena_end {
	return C.verbena_end{
		qp: unsafe.Pointer(e.QP), cq: unsafe.Pointer(e.RecvCQ), sends: unsafe.Pointer(e.SendCQ),
		channel: unsafe.Pointer(e.Channel),
		quiet:   unsafe.Pointer(e.Quiet), loud: unsafe.Pointer(e.Loud), recv: unsafe.Pointer(e.Recv),
	}
}

// events looks up the functions for completion events in the library that has
// created the channels.
var events = dl.Library{
	Name: "libibverbs.so.1", Symbols: []string{"ibv_get_cq_event", "ibv_ack_cq_events"},
	Set: func(i int, f unsafe.Pointer) { C.verbena_loop_event_function(C.int32_t(i), f) },
}

// PingPong sends a message from a to b and back, rounds times in a C loop, and
// returns the time that it took. Every 16th send has a completion. Both ends
// must have a receive posted. With wait, the ends wait for completion events;
// otherwise they busy-wait.
func PingPong(a, b *End, wait bool, rounds int) time.Duration {
	var w C.int32_t
	if wait {
		_ = events.Load() // C reports missing functions
		w = 1
	}
	ca, cb := a.c(), b.c()
	took := C.verbena_loop_pingpong(&ca, &cb, w, C.int64_t(rounds))
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return time.Duration(took)
}

// Stream posts a list of requests rounds times in a C loop, and returns the
// time that it took, or a negative time after a failure. Only the last request
// of the list has a completion. At most window copies of the list are in flight
// at a time.
func Stream(qp *libibverbs.Qp, cq *libibverbs.Cq, list *libibverbs.SendWr, window, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_stream(unsafe.Pointer(qp), unsafe.Pointer(cq), unsafe.Pointer(list),
		C.int32_t(window), C.int64_t(rounds)))
}
