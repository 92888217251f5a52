// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// alarm is an eventfd on which a goroutine sleeps in Go's netpoller.
type alarm struct {
	fd int // eventfd, or -1 if the system has none left

	// file has fd, and conn is its connection in Go's netpoller. deadline is
	// the one that was set for it. Only the goroutine that sleeps uses them.
	file     *os.File
	conn     syscall.RawConn // nil: the netpoller does not take the eventfd, or no goroutine has slept yet
	deadline time.Time
}

func newAlarm() alarm {
	fd, _, e := syscall.Syscall(syscall.SYS_EVENTFD2, 0, syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if e != 0 {
		return alarm{fd: -1}
	}
	return alarm{fd: int(fd)}
}

func (a *alarm) close() {
	if a.file != nil {
		a.file.Close()
	} else if a.fd >= 0 {
		syscall.Close(a.fd)
	}
}

// ring makes the sleeping goroutine look whether its sleep is over.
func (a *alarm) ring() {
	if a.add() != syscall.EAGAIN {
		return
	}
	var count uint64 // a process has filled the counter
	_, _, _ = syscall.Syscall(syscall.SYS_READ, uintptr(a.fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
	a.add()
}

// add adds 1 to the eventfd.
func (a *alarm) add() syscall.Errno {
	one := uint64(1)
	_, _, e := syscall.Syscall(syscall.SYS_WRITE, uintptr(a.fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
	return e
}

// open registers the eventfd with the netpoller. It returns false if that does
// not take it.
func (a *alarm) open() bool {
	if a.file == nil && a.fd >= 0 {
		a.file = os.NewFile(uintptr(a.fd), "bell")
		if a.file.SetReadDeadline(time.Time{}) == nil {
			a.conn, _ = a.file.SyscallConn()
		}
	}
	return a.conn != nil
}

// park waits until f returns true, at most d. The thread that looks in the
// netpoller for the node's work then also finds the goroutines of the program
// that this work makes ready, without waking another thread.
func (a *alarm) park(d time.Duration, f func(uintptr) bool) {
	if !a.open() {
		time.Sleep(min(d, minPause))
		return
	}
	// A deadline that is too early only makes the wait end early, and setting
	// it takes as long as the rest.
	if now := time.Now(); a.deadline.Before(now) || a.deadline.Sub(now) > d {
		a.deadline = now.Add(d)
		_ = a.file.SetReadDeadline(a.deadline)
	}
	// The netpoller reports each addition to the eventfd, so its counter need
	// not be read.
	_ = a.conn.Read(f)
}

// wait waits until f returns true. The caller has called open, which has
// returned true.
func (a *alarm) wait(f func(uintptr) bool) { _ = a.conn.Read(f) }
