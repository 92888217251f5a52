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

// Post posts the list wr rounds times in a C loop, and returns the time that it
// took.
func Post(qp *libibverbs.Qp, wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_post(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// Data is the segment of 64 bytes that each request of the loops has.
type Data struct {
	Addr uint64
	LKey uint32
}

// FillAndPost fills the list wr with n sends and posts it, rounds times in a C
// loop. It returns the time that it took.
func FillAndPost(qp *libibverbs.Qp, wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_fill_and_post(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// ChangeAndPost changes the segments of the list wr of n sends and posts it,
// rounds times in a C loop. It returns the time that it took.
func ChangeAndPost(qp *libibverbs.Qp, wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_change_and_post(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// FillAndRecv fills the list wr with n receives and posts it, rounds times in a
// C loop. It returns the time that it took.
func FillAndRecv(qp *libibverbs.Qp, wr *libibverbs.RecvWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_fill_and_recv(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// Cycle fills the list wr with n sends, posts it, polls for n completions and
// reads them, rounds times in a C loop. It returns the time that it took.
func Cycle(qp *libibverbs.Qp, cq *libibverbs.Cq, wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_loop_cycle(unsafe.Pointer(qp), unsafe.Pointer(wr),
		unsafe.Pointer(cq), unsafe.Pointer(&wcs[0]), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// SendExtended posts n sends with ibv_wr_*, without a list, rounds times in a C
// loop. It returns the time that it took.
func SendExtended(qp *libibverbs.QpEx, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_send_extended(unsafe.Pointer(qp), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// PostExtended posts the list wr with ibv_wr_*, rounds times in a C loop. It
// returns the time that it took.
func PostExtended(qp *libibverbs.QpEx, wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_post_extended(unsafe.Pointer(qp), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// Poll polls for n completions, rounds times in a C loop. It returns the time
// that it took.
func Poll(cq *libibverbs.Cq, n, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_loop_poll(unsafe.Pointer(cq), unsafe.Pointer(&wcs[0]), C.int32_t(n), C.int64_t(rounds)))
}

// PollExtended reads n completions with ibv_start_poll, rounds times in a C
// loop. It returns the time that it took.
func PollExtended(cq *libibverbs.CqEx, n, rounds int) time.Duration {
	return time.Duration(C.verbena_loop_poll_extended(unsafe.Pointer(cq), C.int32_t(n), C.int64_t(rounds)))
}

// PostAndPoll posts the list wr and polls for n completions, rounds times in a
// C loop. It returns the time that it took.
func PostAndPoll(qp *libibverbs.Qp, cq *libibverbs.Cq, wr *libibverbs.SendWr, n, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_loop_post_and_poll(unsafe.Pointer(qp), unsafe.Pointer(wr),
		unsafe.Pointer(cq), unsafe.Pointer(&wcs[0]), C.int32_t(n), C.int64_t(rounds)))
}

// Empty calls a C function that does nothing.
func Empty() { C.verbena_empty(nil) }
