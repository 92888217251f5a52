// SPDX-License-Identifier: Apache-2.0

//go:build unix

package netpoll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/internal/cerr"
)

// past is a read deadline that makes a parked leader return at once.
var past = time.Unix(1, 0)

// FD is a duplicate of a C library's descriptor, registered with the runtime's
// netpoller. All methods may be called from any goroutine.
type FD struct {
	name string
	file *os.File
	raw  syscall.RawConn

	// lead is full while a goroutine leads; see the package documentation.
	// RawConn.Read takes a lock, and a second caller would block on it regardless
	// of its context. A goroutine therefore first takes the lead here, where a
	// select can wait for it.
	lead chan struct{}
	turn turn

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error

	// step and cancel are bound once, to spare each wait an allocation.
	step   func(uintptr) bool
	cancel func()

	canceled chan struct{} // receives when cancel has run
}

// turn is the state of the goroutine that leads (see FD.lead); only that
// goroutine touches it.
type turn struct {
	ctx    context.Context // here because step takes no arguments
	try    func() (done bool, err error)
	err    error       // error of the last try
	disarm func() bool // nil while ctx is not being watched
}

// SetNonblock switches a descriptor to non-blocking mode.
func SetNonblock(fd int) error {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("set non-blocking: %w", err)
	}
	return nil
}

// New registers a duplicate of fd with the netpoller. The name appears in
// errors.
//
// New switches the original to non-blocking mode, which the duplicate shares.
// The original stays non-blocking even if New fails, and this package never
// closes it.
func New(fd int, name string) (*FD, error) {
	if err := SetNonblock(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dup, err := Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: duplicate: %w", name, cerr.WithFiles(err))
	}
	file := os.NewFile(uintptr(dup), name)

	// NewFile hides a failed registration. Deadlines exist only with the
	// netpoller, so ask for one.
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: descriptor cannot be polled: %w", name, err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f := &FD{
		name:     name,
		file:     file,
		raw:      raw,
		lead:     make(chan struct{}, 1),
		closing:  make(chan struct{}),
		canceled: make(chan struct{}, 1),
	}
	f.step = func(uintptr) bool { return f.tryOrArm() }
	f.cancel = func() {
		_ = f.file.SetReadDeadline(past) // fails only when closed
		f.canceled <- struct{}{}
	}
	return f, nil
}

// Kick makes the leader, if there is one, check its ready channel and call try
// again. That try sees what the caller changed before Kick.
func (f *FD) Kick() {
	_ = f.file.SetReadDeadline(past) // fails only when closed
}

// Close wakes all waiters, whose Wait then returns an error that is
// os.ErrClosed. When Close returns, no try is running and none will run.
// Further calls, including concurrent ones, wait for the same and return the
// same. The original descriptor stays open.
//
// Close panics if a try calls it, because it would wait for itself.
func (f *FD) Close() error {
	if calledFromTry() {
		panic("netpoll: Close called from a try function")
	}
	f.closeOnce.Do(func() {
		close(f.closing)
		f.closeErr = f.file.Close() // wakes a parked leader
		f.lead <- struct{}{}        // never given back: no goroutine leads again
	})
	return f.closeErr
}

func (f *FD) isClosing() bool { return fired(f.closing) }

func (f *FD) closedError() error {
	return fmt.Errorf("%s: %w", f.name, os.ErrClosed)
}

// fired reports whether c is closed or has a value, which it takes.
func fired(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// interrupted reports whether err comes from this package ending a leader's
// sleep, rather than from a failure of the netpoller.
func (f *FD) interrupted(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || f.isClosing()
}
