//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakeverbs

import (
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

/*
#include "fake.h"
#cgo noescape verbena_c_empty
#cgo nocallback verbena_c_empty
*/
import "C"

// Post is the loop in C that posts a list.
func (d *Device) Post(wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_c_post(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// Data is what the loops' requests have: one segment of 64 bytes.
type Data struct {
	Addr uint64
	LKey uint32
}

// FillAndPost is the loop in C that fills a list of n sends and posts it.
func (d *Device) FillAndPost(wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_c_fill_and_post(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// ChangeAndPost is the loop in C that changes the segments of a list of n
// sends and posts it.
func (d *Device) ChangeAndPost(wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_c_change_and_post(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// FillAndRecv is the loop in C that fills a list of n receives and posts it.
func (d *Device) FillAndRecv(wr *libibverbs.RecvWr, n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_c_fill_and_recv(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// Cycle is the loop in C that fills a list of n sends, posts it, polls for n
// completions and looks at them.
func (d *Device) Cycle(wr *libibverbs.SendWr, n int, data Data, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_c_cycle(unsafe.Pointer(d.QP()), unsafe.Pointer(wr),
		unsafe.Pointer(d.CQ()), unsafe.Pointer(&wcs[0]), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// SendExtended is the loop in C that sends n requests with ibv_wr_*, without a
// list.
func (d *Device) SendExtended(n int, data Data, rounds int) time.Duration {
	return time.Duration(C.verbena_c_send_extended(unsafe.Pointer(d.QP()), C.int32_t(n),
		C.uint64_t(data.Addr), C.uint32_t(data.LKey), C.int64_t(rounds)))
}

// PostExtended is the loop in C that sends a list with ibv_wr_*.
func (d *Device) PostExtended(wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_c_post_extended(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// Poll is the loop in C that polls for n completions.
func (d *Device) Poll(n, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_c_poll(unsafe.Pointer(d.CQ()), unsafe.Pointer(&wcs[0]), C.int32_t(n), C.int64_t(rounds)))
}

// PollExtended is the loop in C that reads n completions with ibv_start_poll.
func (d *Device) PollExtended(n, rounds int) time.Duration {
	return time.Duration(C.verbena_c_poll_extended(unsafe.Pointer(d.CQ()), C.int32_t(n), C.int64_t(rounds)))
}

// PostAndPoll is the loop in C that posts a list and polls for n completions.
func (d *Device) PostAndPoll(wr *libibverbs.SendWr, n, rounds int) time.Duration {
	wcs := make([]libibverbs.Wc, n)
	return time.Duration(C.verbena_c_post_and_poll(unsafe.Pointer(d.QP()), unsafe.Pointer(wr),
		unsafe.Pointer(d.CQ()), unsafe.Pointer(&wcs[0]), C.int32_t(n), C.int64_t(rounds)))
}

// Empty is a call into C that does nothing.
func Empty() { C.verbena_c_empty(nil) }
