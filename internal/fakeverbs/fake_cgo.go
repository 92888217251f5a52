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

// Device is a fake device. It must not be used concurrently.
type Device struct {
	p     unsafe.Pointer
	state *C.verbena_state
}

// New makes a device. Close frees it.
func New() *Device {
	p := C.verbena_fake_new()
	return &Device{p, C.verbena_fake_state(p)}
}

// Close frees the device.
func (d *Device) Close() { C.verbena_fake_free(d.p) }

// QP returns the queue pair, as which Qp is part of it.
func (d *Device) QP() *libibverbs.QpEx { return (*libibverbs.QpEx)(C.verbena_fake_qp(d.p)) }

// CQ returns the completion queue.
func (d *Device) CQ() *libibverbs.CqEx { return (*libibverbs.CqEx)(C.verbena_fake_cq(d.p)) }

// PlainCQ returns the same completion queue without its extension.
func (d *Device) PlainCQ() *libibverbs.Cq { return (*libibverbs.Cq)(C.verbena_fake_cq(d.p)) }

// Script says what is to happen from now on.
type Script struct {
	Completions int // there are to poll
	EmptyPolls  int // before the first of them
	OnArming    int // completions that come when the queue is armed
	FailAt      int // the request of a list that PostError is for
	PostError   int // what posting returns
	PollError   int // what polling returns
	ArmError    int
	Status      libibverbs.WcStatus // of completions
	WCFlags     libibverbs.WcFlags
}

// Set starts a script. What happened before is forgotten.
func (d *Device) Set(s Script) {
	failAt := C.int64_t(-1)
	if s.PostError != 0 {
		failAt = C.int64_t(s.FailAt)
	}
	*d.state = C.verbena_state{
		completions: C.int64_t(s.Completions), empty_polls: C.int64_t(s.EmptyPolls), on_arming: C.int64_t(s.OnArming),
		fail_at: failAt, post_error: C.int32_t(s.PostError), poll_error: C.int32_t(s.PollError),
		arm_error: C.int32_t(s.ArmError), status: C.uint32_t(s.Status), wc_flags: C.uint32_t(s.WCFlags), record: 1,
	}
}

// Endless makes the device give completions without end, and record nothing.
func (d *Device) Endless() {
	*d.state = C.verbena_state{completions: 1 << 62, fail_at: -1}
}

// Requests returns how many requests were posted.
func (d *Device) Requests() int { return int(d.state.requests) }

// Polls returns how often the queue was looked at.
func (d *Device) Polls() int { return int(d.state.polls) }

// Armed returns how often the queue was armed; once for solicited completions
// counts 100.
func (d *Device) Armed() int { return int(d.state.armed) }

// Unended returns by how much ibv_start_poll's successes outnumber
// ibv_end_poll's calls.
func (d *Device) Unended() int { return -int(d.state.ended) }

// Calls returns the requests and ibv_wr_* calls that were recorded.
func (d *Device) Calls() []Call {
	var calls []Call
	for _, c := range d.state.calls[:d.state.ncalls] {
		call := Call{Op: Op(c.op), ID: uint64(c.id), Flags: libibverbs.SendFlags(c.flags)}
		for i, a := range c.args {
			call.Args[i] = uint64(a)
		}
		calls = append(calls, call)
	}
	return calls
}

// Post is the loop in C that posts a list.
func (d *Device) Post(wr *libibverbs.SendWr, rounds int) time.Duration {
	return time.Duration(C.verbena_c_post(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int64_t(rounds)))
}

// FillAndPost is the loop in C that fills a list of n requests, each with one
// segment, and posts it.
func (d *Device) FillAndPost(wr *libibverbs.SendWr, n int, addr uint64, lkey uint32, rounds int) time.Duration {
	return time.Duration(C.verbena_c_fill_and_post(unsafe.Pointer(d.QP()), unsafe.Pointer(wr), C.int32_t(n),
		C.uint64_t(addr), C.uint32_t(lkey), C.int64_t(rounds)))
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
