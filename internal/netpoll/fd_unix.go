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
)

// past is a read deadline that makes a parked leader return at once.
var past = time.Unix(1, 0)

// FD is a duplicate of a C library's descriptor, registered with the runtime's
// netpoller. All methods may be called from any goroutine.
type FD struct {
	name string
	file *os.File
	raw  syscall.RawConn

	// lead is full while somebody leads. RawConn.Read takes a lock on which a
	// second caller would block beyond the reach of its context, so the turn
	// is taken here, where it can be selected on.
	lead chan struct{}
	turn turn

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error

	// Both are bound once, so that a wait does not allocate them.
	step   func(uintptr) bool
	cancel func()

	canceled chan struct{} // receives when cancel has run
}

// turn is the state of the current leader; only the leader touches it.
type turn struct {
	ctx    context.Context // here because step cannot be passed arguments
	try    func() (done bool, err error)
	err    error       // what try returned with its last word
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
// The original is switched to non-blocking mode, which the duplicate shares,
// and stays so even if New fails. It is never closed.
func New(fd int, name string) (*FD, error) {
	if err := SetNonblock(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dup, err := Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: duplicate: %w", name, err)
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

// Kick makes the leader, if there is one, look at its ready channel and call
// try again. What the caller has changed before is seen by that try.
func (f *FD) Kick() {
	_ = f.file.SetReadDeadline(past) // fails only when closed
}

// Close wakes all waiters, whose Wait then returns an error that is
// os.ErrClosed, and returns when no try is running and none will run any more.
// Further calls, also concurrent ones, wait for the same and return the same.
// The original descriptor stays open.
//
// Calling Close from a try would wait for itself, and panics.
func (f *FD) Close() error {
	if calledFromTry() {
		panic("netpoll: Close called from a try function")
	}
	f.closeOnce.Do(func() {
		close(f.closing)
		f.closeErr = f.file.Close() // wakes a parked leader
		f.lead <- struct{}{}        // never given back: nobody leads again
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

// interrupted tells the ways in which this package ends a leader's sleep from
// a failure of the netpoller itself.
func (f *FD) interrupted(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || f.isClosing()
}
