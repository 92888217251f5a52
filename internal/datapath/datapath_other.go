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

// PostSend fails.
func PostSend(unsafe.Pointer, libibverbs.QpCreateSendOpsFlags, *libibverbs.SendWr) Posted {
	return cannotPost
}

// PostRecv fails.
func PostRecv(*libibverbs.Qp, *libibverbs.RecvWr) Posted { return cannotPost }

// Poll fails.
func Poll(Queue, int, unsafe.Pointer) Polled { return cannotPoll }

// PollOrArm fails.
func PollOrArm(Queue, int, unsafe.Pointer, bool) Polled { return cannotPoll }

// Sleep fails.
func Sleep(Queue, int, unsafe.Pointer, bool, int, time.Duration) Polled { return cannotPoll }

// Spin fails.
func Spin(Queue, int, unsafe.Pointer, time.Duration) Polled { return cannotPoll }

// Exchange fails.
func Exchange(
	*libibverbs.Qp, *libibverbs.RecvWr, unsafe.Pointer, libibverbs.QpCreateSendOpsFlags, *libibverbs.SendWr,
	*libibverbs.Cq, int, int, unsafe.Pointer, time.Duration,
) Exchanged {
	return Exchanged{Sent: cannotPost}
}

func isRXE(unsafe.Pointer) bool { return false }
