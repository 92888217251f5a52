// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo || !(amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package datapath

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

var (
	cannotPost = Posted{Value: int64(syscall.ENOSYS), None: 1}
	cannotPoll = Polled{Value: -int64(syscall.ENOSYS)}
)

// PostSend fails with syscall.ENOSYS.
func PostSend(_ unsafe.Pointer, _ libibverbs.QpCreateSendOpsFlags, _ *libibverbs.SendWr, p *Posted) {
	*p = cannotPost
}

// PostRecv fails with syscall.ENOSYS.
func PostRecv(_ *libibverbs.Qp, _ *libibverbs.RecvWr, p *Posted) { *p = cannotPost }

// HasDevice reports whether SetDevice has set a device. It always returns
// false, as nothing can be polled.
func HasDevice() bool { return false }

// Received returns 0, as there is no device.
func Received() uint32 { return 0 }

// WokeOthers always returns false.
func WokeOthers() bool { return false }

// Poll fails with syscall.ENOSYS.
func Poll(_ Queue, _ int, _ unsafe.Pointer, p *Polled) { *p = cannotPoll }

// PollOrArm fails with syscall.ENOSYS.
func PollOrArm(_ Queue, _ int, _ unsafe.Pointer, _, _ bool, p *Polled) { *p = cannotPoll }

// SetWake returns false, as there is no device.
func SetWake(_ *libibverbs.Cq, _ func() bool) bool { return false }

// NewChannel returns nil, as there is no device.
func NewChannel(_ *libibverbs.Context) *libibverbs.CompChannel { return nil }

// OpenChannel fails with syscall.ENOSYS.
func OpenChannel(_ *libibverbs.CompChannel) syscall.Errno { return syscall.ENOSYS }

// Attend returns false, as there is no device.
func Attend(_ func() bool, _ time.Duration) bool { return false }

// MayAttend returns false, as there is no device.
func MayAttend() bool { return false }

// Interrupt does nothing, as there is no device.
func Interrupt() {}

// Park does nothing, as there is no device.
func Park() {}

// Supersede does nothing, as there is no device.
func Supersede() {}

// TakeEvent fails with syscall.ENOSYS.
func TakeEvent(_ *libibverbs.CompChannel, p *Polled) { *p = cannotPoll }

// Sleep fails with syscall.ENOSYS.
func Sleep(_ Queue, _ int, _ unsafe.Pointer, _ bool, _ time.Duration, p *Polled) {
	*p = cannotPoll
}

// SpinAlone fails with syscall.ENOSYS.
func SpinAlone(_ Queue, _ int, _ unsafe.Pointer, _ time.Duration, p *Polled) { *p = cannotPoll }

// Spin fails with syscall.ENOSYS.
func Spin(_ Queue, _ int, _ unsafe.Pointer, _ time.Duration, p *Polled) { *p = cannotPoll }

// Exchange fails with syscall.ENOSYS.
func Exchange(
	_ *libibverbs.Qp, _ *libibverbs.RecvWr, _ unsafe.Pointer, _ libibverbs.QpCreateSendOpsFlags, _ *libibverbs.SendWr,
	_ Queue, _, _ int, _ unsafe.Pointer, _ How, _ time.Duration, e *Exchanged,
) {
	e.Sent = cannotPost
}

// Begin returns false, as nothing is posted.
func Begin() bool { return false }

// End does nothing.
func End() {}

// BeginSend returns false, as nothing is posted.
func BeginSend() bool { return false }

// EndSend does nothing.
func EndSend() {}

func isRXE(unsafe.Pointer) bool { return false }
