//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath

import (
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

/*
#cgo LDFLAGS: -ldl
#include "datapath.h"
#cgo noescape verbena_post_send
#cgo nocallback verbena_post_send
#cgo noescape verbena_post_recv
#cgo nocallback verbena_post_recv
#cgo noescape verbena_poll
#cgo nocallback verbena_poll
#cgo noescape verbena_poll_or_arm
#cgo nocallback verbena_poll_or_arm
#cgo noescape verbena_spin
#cgo nocallback verbena_spin
#cgo noescape verbena_exchange
#cgo nocallback verbena_exchange
#cgo noescape verbena_is_rxe
#cgo nocallback verbena_is_rxe
*/
import "C"

func bytes(p unsafe.Pointer) *C.uint8_t { return (*C.uint8_t)(p) }

func posted(r C.verbena_posted) Posted {
	return Posted{int64(r.value), int32(r.error), r.none != 0, unsafe.Pointer(r.bad)}
}

func polled(r C.verbena_polled) Polled {
	return Polled{int64(r.value), int32(r.error), r.arming != 0}
}

// PostSend posts a list, with ibv_wr_* if ops is not 0: what the queue pair,
// which is then a libibverbs.QpEx, was made with.
func PostSend(qp unsafe.Pointer, ops libibverbs.QpCreateSendOpsFlags, wr *libibverbs.SendWr) Posted {
	return posted(C.verbena_post_send(bytes(qp), C.uint64_t(ops), bytes(unsafe.Pointer(wr))))
}

// PostRecv posts a list.
func PostRecv(qp *libibverbs.Qp, wr *libibverbs.RecvWr) Posted {
	return posted(C.verbena_post_recv(bytes(unsafe.Pointer(qp)), bytes(unsafe.Pointer(wr))))
}

// Poll polls once.
func Poll(q Queue, max int, out unsafe.Pointer) Polled {
	return polled(C.verbena_poll(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out)))
}

// PollOrArm polls and, if there is nothing, arms the queue and polls again.
func PollOrArm(q Queue, max int, out unsafe.Pointer, solicited bool) Polled {
	var s C.int32_t
	if solicited {
		s = 1
	}
	return polled(C.verbena_poll_or_arm(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out), s))
}

// Spin polls until there is something or the budget is used up.
func Spin(q Queue, max int, out unsafe.Pointer, budget time.Duration) Polled {
	return polled(C.verbena_spin(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out), C.int64_t(budget)))
}

// Exchange posts receives, then requests as PostSend does, either of which may
// be nil, and polls until there are at least so many completions or the budget
// is used up. What comes after a failure is not tried.
func Exchange(
	qp *libibverbs.Qp, receives *libibverbs.RecvWr,
	ex unsafe.Pointer, ops libibverbs.QpCreateSendOpsFlags, requests *libibverbs.SendWr,
	cq *libibverbs.Cq, least, max int, out unsafe.Pointer, budget time.Duration,
) (received, sent Posted, p Polled) {
	r := C.verbena_exchange(bytes(unsafe.Pointer(qp)), bytes(unsafe.Pointer(receives)),
		bytes(ex), C.uint64_t(ops), bytes(unsafe.Pointer(requests)),
		bytes(unsafe.Pointer(cq)), C.int64_t(least), C.int64_t(max), bytes(out), C.int64_t(budget))
	return posted(r.received), posted(r.sent), polled(r.polled)
}

// isRXE reports whether a function is in Soft-RoCE's provider.
func isRXE(function unsafe.Pointer) bool { return C.verbena_is_rxe(bytes(function)) != 0 }
