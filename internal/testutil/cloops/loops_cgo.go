// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cloops

import (
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

/*
#include "loops.h"
#cgo noescape verbena_empty
#cgo nocallback verbena_empty
*/
import "C"

// Post is the loop in C that posts a list.
func Post(qp *libibverbs.Qp, wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_post(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// Data is what the loops' requests have: one segment of 64 bytes.
type Data struct {
	Addr uint64
	LKey uint32
}

// FillAndPost is the loop in C that fills a list of n sends and posts it.
func FillAndPost(qp *libibverbs.Qp, wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_fill_and_post(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// ChangeAndPost is the loop in C that changes the segments of a list of n
// sends and posts it.
func ChangeAndPost(qp *libibverbs.Qp, wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_change_and_post(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// FillAndRecv is the loop in C that fills a list of n receives and posts it.
func FillAndRecv(qp *libibverbs.Qp, wr *libibverbs.RecvWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_fill_and_recv(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// Cycle is the loop in C that fills a list of n sends, posts it, polls for n
// completions and looks at them.
func Cycle(qp *libibverbs.Qp, cq *libibverbs.Cq, wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_loop_cycle(unsafe.Pointer(qp), unsafe.Pointer(wr),
		unsafe.Pointer(cq), unsafe.Pointer(&wcs[0]), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// SendExtended is the loop in C that sends n requests with ibv_wr_*, without a
// list.
func SendExtended(qp *libibverbs.QpEx, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_send_extended(unsafe.Pointer(qp), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// PostExtended is the loop in C that sends a list with ibv_wr_*.
func PostExtended(qp *libibverbs.QpEx, wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_post_extended(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// Poll is the loop in C that polls for n completions.
func Poll(cq *libibverbs.Cq, n, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_loop_poll(unsafe.Pointer(cq), unsafe.Pointer(&wcs[0]), C.int32_t(n), C.int64_t(rounds)))
}

// PollExtended is the loop in C that reads n completions with ibv_start_poll.
func PollExtended(cq *libibverbs.CqEx, n, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_poll_extended(unsafe.Pointer(cq), C.int32_t(n), C.int64_t(rounds)))
}

// PostAndPoll is the loop in C that posts a list and polls for n completions.
func PostAndPoll(qp *libibverbs.Qp, cq *libibverbs.Cq, wr *libibverbs.SendWr, n, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_loop_post_and_poll(unsafe.Pointer(qp), unsafe.Pointer(wr),
		unsafe.Pointer(cq), unsafe.Pointer(&wcs[0]), C.int32_t(n), C.int64_t(rounds)))
}

// Empty is a call into C that does nothing.
func Empty() { C.verbena_empty(nil) }
