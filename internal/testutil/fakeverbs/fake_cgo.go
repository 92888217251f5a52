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
