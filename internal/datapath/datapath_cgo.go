// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/dl"
)

/*
#cgo LDFLAGS: -ldl
#include "datapath.h"
#cgo noescape verbena_take_event
#cgo nocallback verbena_take_event
#cgo noescape verbena_is_rxe
#cgo nocallback verbena_is_rxe
#cgo nocallback verbena_set_origin
static void *origin_function(void) { return (void *)verbena_origin; }
*/
import "C"

// These are negative, and do not compile, if Go's struct has another size than
// C's.
const (
	_ = -(unsafe.Sizeof(Posted{}) ^ C.sizeof_struct_verbena_posted)
	_ = -(unsafe.Sizeof(Polled{}) ^ C.sizeof_struct_verbena_polled)
	_ = -(unsafe.Sizeof(Exchanged{}) ^ C.sizeof_struct_verbena_exchanged)
	_ = -(unsafe.Sizeof(WC{}) ^ C.VERBENA_WC_SIZE)
)

// bytes converts a pointer for C.
func bytes(p unsafe.Pointer) *C.uint8_t { return (*C.uint8_t)(p) }

// flag converts a bool for C.
func flag(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// Results are written through a pointer to zeroed memory. Returning them would
// take a third of a call's time: the processor stalls when it copies as a whole
// what was written in pieces.

// origin is the function that SetOrigin has set, or nil.
var origin atomic.Pointer[func() unsafe.Pointer]

// SetOrigin makes Begin call f. f returns a text for C that says which function
// is posting, and C gets it in the same thread from Origin. If f is nil,
// nothing is called any more.
func SetOrigin(f func() unsafe.Pointer) {
	if f == nil {
		origin.Store(nil)
	} else {
		origin.Store(&f)
	}
	hooked.Store(f != nil || HasDevice())
}

// Origin returns a C function of the type const char *(void). It returns the
// text about the function that is posting in the same thread, or NULL.
func Origin() unsafe.Pointer { return C.origin_function() }

// Begin must be called before a call of C that posts requests. If it returns
// true, End must be called after that in the same goroutine. The functions of
// this package do not call it, so that the compiler can inline them.
func Begin() bool { return origin.Load() != nil && begin() }

// begin is Begin if a function is set. It is not part of Begin, so that the
// compiler inlines that.
func begin() bool {
	f := origin.Load()
	if f == nil {
		return false
	}
	runtime.LockOSThread()
	C.verbena_set_origin(bytes((*f)()))
	return true
}

// End ends what Begin has begun.
func End() {
	C.verbena_set_origin(nil)
	runtime.UnlockOSThread()
}

// hooked reports whether SetOrigin or SetDevice has set something.
var hooked atomic.Bool

// BeginSend and EndSend are Begin and End for PostSend. They also let the
// device of SetDevice do its work in the posting thread.
func BeginSend() bool { return hooked.Load() && beginSend() }

func beginSend() bool {
	if origin.Load() != nil {
		return begin()
	}
	d := device.Load()
	return d != nil && d.Relieve()
}

// EndSend ends what BeginSend has begun.
func EndSend() {
	if origin.Load() != nil {
		End()
	} else if d := device.Load(); d != nil {
		d.Resume()
	}
}

// PostSend posts the list wr. If ops is 0, qp is a libibverbs.Qp. Otherwise,
// ops has the operations with which the queue pair was created, qp is a
// libibverbs.QpEx, and PostSend uses ibv_wr_*.
func PostSend(qp unsafe.Pointer, ops libibverbs.QpCreateSendOpsFlags, wr *libibverbs.SendWr, p *Posted) {
	enter()
	C.verbena_post_send(bytes(qp), C.uint64_t(ops), bytes(unsafe.Pointer(wr)), bytes(unsafe.Pointer(p)))
	leave()
}

// PostRecv posts the list wr.
func PostRecv(qp *libibverbs.Qp, wr *libibverbs.RecvWr, p *Posted) {
	enter()
	C.verbena_post_recv(bytes(unsafe.Pointer(qp)), bytes(unsafe.Pointer(wr)), bytes(unsafe.Pointer(p)))
	leave()
}

// device is the device that SetDevice has set, or nil.
var device atomic.Pointer[Device]

// SetDevice makes the functions of this package call those of d. If d is nil,
// nothing is called any more.
func SetDevice(d *Device) {
	device.Store(d)
	hooked.Store(d != nil || origin.Load() != nil)
}

// HasDevice reports whether SetDevice has set a device. If so, threads should
// spin rather than sleep in C, since a sleeping thread does none of its work.
func HasDevice() bool { return device.Load() != nil }

// Received returns the number of packets that the device of SetDevice has
// received from other processes.
func Received() uint32 {
	if d := device.Load(); d != nil {
		return d.Received()
	}
	return 0
}

// WokeOthers reports whether requests that the program has posted since the
// last call have made the device of SetDevice wake goroutines. They may not run
// before the goroutine that has posted leaves its processor.
func WokeOthers() bool {
	d := device.Load()
	return d != nil && d.WokeOthers()
}

// Poll polls once. out is an array of WC with room for max, here and in the
// functions below.
func Poll(q Queue, max int, out unsafe.Pointer, p *Polled) {
	enter()
	C.verbena_poll(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out), bytes(unsafe.Pointer(p)))
	leave()
	if p.Value == 0 {
		if d := device.Load(); d != nil {
			d.Idle(q.CQ)
		}
	}
}

// PollOrArm polls. If there are no completions, it arms the queue, for
// solicited completions only if solicited is true, and polls again. If wakes is
// true, the next completion calls the function of SetWake, which must have
// returned true, and raises no event.
func PollOrArm(q Queue, max int, out unsafe.Pointer, solicited, wakes bool, p *Polled) {
	how := flag(solicited)
	if wakes {
		how += C.VERBENA_WAKE
	}
	enter()
	C.verbena_poll_or_arm(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out), how, bytes(unsafe.Pointer(p)))
	leave()
}

// SetWake makes the device of SetDevice call wake when a completion arrives in
// a queue that PollOrArm has armed for that. wake must not block, and reports
// whether a goroutine was parked. SetWake returns false if the device cannot do
// that.
func SetWake(cq *libibverbs.Cq, wake func() (parked bool)) bool {
	d := device.Load()
	return d != nil && d.SetWake(cq, unseen(wake))
}

// NewChannel creates a completion channel of the device of SetDevice, without a
// descriptor, since SetWake needs none. It returns nil if that fails, or if
// there is no such device.
func NewChannel(context *libibverbs.Context) *libibverbs.CompChannel {
	d := device.Load()
	if d == nil || d.NewChannel == nil {
		return nil
	}
	return d.NewChannel(context)
}

// OpenChannel makes the descriptor of a channel from NewChannel. It returns 0
// or an error number.
func OpenChannel(channel *libibverbs.CompChannel) syscall.Errno {
	return device.Load().OpenChannel(channel)
}

// Attend lets the device of SetDevice do its work in the caller, which waits
// for a completion, until over returns true. A thread that makes over return
// true calls Interrupt afterwards. Attend returns false, perhaps early, if the
// device's worker has to do the work. The caller then parks.
func Attend(over func() bool, spin time.Duration) bool {
	d := device.Load()
	return d != nil && d.Attend(over, spin)
}

// MayAttend reports whether Attend would do something now.
func MayAttend() bool {
	d := device.Load()
	return d != nil && d.MayAttend()
}

// Interrupt makes Attend call its function again.
func Interrupt() {
	if d := device.Load(); d != nil {
		d.Interrupt()
	}
}

// Park must be called before a goroutine parks until a function of SetWake is
// called. Otherwise, the device may count on the goroutine to do its work.
func Park() {
	if d := device.Load(); d != nil {
		d.Park()
	}
}

// Supersede makes a goroutine that has been in Attend for long park, so that
// the caller, whose waits are short, can attend next time.
func Supersede() {
	if d := device.Load(); d != nil {
		d.Supersede()
	}
}

// events looks up the functions that take an event from a completion channel,
// in the library that created the channel.
var events = dl.Library{
	Name: "libibverbs.so.1", Symbols: []string{"ibv_get_cq_event", "ibv_ack_cq_events"},
	Set: func(i int, f unsafe.Pointer) { C.verbena_set_event_function(C.int32_t(i), f) },
}

// Sleep polls like PollOrArm. If there are no completions, it sleeps until the
// queue's channel, which must be non-blocking, has an event, and polls again.
// It also returns when the budget, which is less than a second, is over, and
// after an event of another queue.
func Sleep(q Queue, max int, out unsafe.Pointer, solicited bool, budget time.Duration, p *Polled) {
	_ = events.Load() // C reports missing functions
	C.verbena_sleep(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out), flag(solicited),
		C.int64_t(budget), bytes(unsafe.Pointer(p)))
}

// TakeEvent takes an event from a channel and acknowledges it. p.Value and
// p.Errno are the results of ibv_get_cq_event, and p.Other is the queue of the
// event.
func TakeEvent(channel *libibverbs.CompChannel, p *Polled) {
	_ = events.Load()
	C.verbena_take_event(bytes(unsafe.Pointer(channel)), bytes(unsafe.Pointer(p)))
}

// Spin polls until there are completions or the budget is over.
func Spin(q Queue, max int, out unsafe.Pointer, budget time.Duration, p *Polled) {
	if d := device.Load(); d != nil {
		spinIdle(d.Idle, q, 0, 1, max, out, budget, p)
		return
	}
	C.verbena_spin(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max), bytes(out), C.int64_t(budget), bytes(unsafe.Pointer(p)))
}

// SpinAlone is Spin for a caller beside a goroutine in Attend: meanwhile, what
// other processes send does not wake that goroutine.
func SpinAlone(q Queue, max int, out unsafe.Pointer, budget time.Duration, p *Polled) {
	d := device.Load()
	if d != nil {
		d.Silence()
	}
	Spin(q, max, out, budget, p)
	if d != nil {
		d.Resume()
	}
}

// spinIdle polls until out has at least least completions or the budget is
// over, and calls f between polls. out has n completions already. If polling
// fails when out already has completions, p reports only these, and the next
// call's poll fails.
func spinIdle(f func(unsafe.Pointer), q Queue, n, least, max int, out unsafe.Pointer, budget time.Duration, p *Polled) {
	for began := int64(0); ; {
		enter()
		C.verbena_look(bytes(q.CQ), C.uint64_t(q.Fields), C.int64_t(max-n),
			bytes(unsafe.Add(out, uintptr(n)*unsafe.Sizeof(WC{}))), bytes(unsafe.Pointer(p)))
		leave()
		if p.Value < 0 {
			if n > 0 {
				p.Value = int64(n)
			}
			return
		}
		n += int(p.Value)
		p.Value = int64(n)
		if began == 0 {
			began = p.Now
		}
		if n >= least || p.Now-began >= int64(budget) {
			return
		}
		f(q.CQ)
	}
}

// Exchange posts receives, then posts requests like PostSend, and then polls
// until out has at least least completions. how says whether it waits like Spin
// or like Sleep; it also returns early when that function would. receives and
// requests may be nil. If a step fails, Exchange skips the following ones.
func Exchange(
	qp *libibverbs.Qp, receives *libibverbs.RecvWr,
	ex unsafe.Pointer, ops libibverbs.QpCreateSendOpsFlags, requests *libibverbs.SendWr,
	q Queue, least, max int, out unsafe.Pointer, how How, budget time.Duration, e *Exchanged,
) {
	var d *Device
	if how == Spinning {
		d = device.Load()
	} else {
		_ = events.Load()
	}
	if d != nil {
		exchangeWith(d, qp, receives, ex, ops, requests, q, least, max, out, budget, e)
		return
	}
	if how == Spinning { // a goroutine that sleeps must not keep others from calling C
		enter()
	}
	C.verbena_exchange(bytes(unsafe.Pointer(qp)), bytes(unsafe.Pointer(receives)),
		bytes(ex), C.uint64_t(ops), bytes(unsafe.Pointer(requests)), bytes(q.CQ),
		C.uint64_t(q.Fields), C.int64_t(least), C.int64_t(max), bytes(out), C.int32_t(how), C.int64_t(budget), bytes(unsafe.Pointer(e)))
	if how == Spinning {
		leave()
	}
}

// exchangeWith is an Exchange that spins, with a device in this process.
func exchangeWith(
	d *Device, qp *libibverbs.Qp, receives *libibverbs.RecvWr,
	ex unsafe.Pointer, ops libibverbs.QpCreateSendOpsFlags, requests *libibverbs.SendWr,
	q Queue, least, max int, out unsafe.Pointer, budget time.Duration, e *Exchanged,
) {
	relieved := requests != nil && d.Relieve()
	enter()
	C.verbena_exchange(bytes(unsafe.Pointer(qp)), bytes(unsafe.Pointer(receives)),
		bytes(ex), C.uint64_t(ops), bytes(unsafe.Pointer(requests)), bytes(q.CQ),
		C.uint64_t(q.Fields), C.int64_t(least), C.int64_t(max), bytes(out), C.int32_t(Spinning), 0, bytes(unsafe.Pointer(e)))
	leave()
	if relieved {
		d.Resume()
	}
	if n := int(e.Polled.Value); budget > 0 && e.Received.Value == 0 && e.Sent.Value == 0 && 0 <= n && n < least {
		spinIdle(d.Idle, q, n, least, max, out, budget, &e.Polled)
	}
}

// isRXE reports whether a function belongs to Soft-RoCE's provider.
func isRXE(function unsafe.Pointer) bool { return C.verbena_is_rxe(bytes(function)) != 0 }
