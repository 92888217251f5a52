// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package fakeverbs

import (
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

/*
#include "fake.h"
*/
import "C"

// Device is a fake device. It must not be used concurrently.
type Device struct {
	p     unsafe.Pointer
	state *C.verbena_state
}

// New creates a fake device. Close must be called to free it.
func New() *Device {
	p := C.verbena_fake_new()
	return &Device{p, C.verbena_fake_state(p)}
}

// Close frees the device.
func (d *Device) Close() { C.verbena_fake_free(d.p) }

// QP returns the queue pair of the device. Its field Qp is the queue pair
// without the extension.
func (d *Device) QP() *libibverbs.QpEx { return (*libibverbs.QpEx)(C.verbena_fake_qp(d.p)) }

// CQ returns the completion queue.
func (d *Device) CQ() *libibverbs.CqEx { return (*libibverbs.CqEx)(C.verbena_fake_cq(d.p)) }

// PlainCQ returns the completion queue of CQ without the extension.
func (d *Device) PlainCQ() *libibverbs.Cq { return (*libibverbs.Cq)(C.verbena_fake_cq(d.p)) }

// Script says what the operations of a device do.
type Script struct {
	Completions int                 // number of completions that polls return
	EmptyPolls  int                 // number of empty polls before the first completion
	OnArming    int                 // number of completions that arrive when the queue is armed
	FailAt      int                 // index of the request in a list for which posting fails, if PostError is not 0
	PostError   int                 // result of posting; 0: success
	PollError   int                 // result of polling; 0: success
	ArmError    int                 // result of arming; 0: success
	Status      libibverbs.WcStatus // status of completions
	WCFlags     libibverbs.WcFlags  // flags of completions
}

// Set makes the device follow the script s. Recorded calls and counts are
// cleared.
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

// Endless makes each poll of the device return as many completions as it can,
// and record nothing.
func (d *Device) Endless() {
	*d.state = C.verbena_state{completions: 1 << 62, fail_at: -1}
}

// Requests returns the number of requests that were posted.
func (d *Device) Requests() int { return int(d.state.requests) }

// Polls returns the number of times that the queue was polled.
func (d *Device) Polls() int { return int(d.state.polls) }

// Armed returns the number of times that the queue was armed. Arming it for
// solicited completions counts as 100.
func (d *Device) Armed() int { return int(d.state.armed) }

// Unended returns the number of successful calls of ibv_start_poll without
// ibv_end_poll.
func (d *Device) Unended() int { return -int(d.state.ended) }

// Calls returns the recorded requests and calls of ibv_wr_*.
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
