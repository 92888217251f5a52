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

// past is a read deadline that wakes a parked poller at once.
var past = time.Unix(1, 0)

// FD is a duplicate of a C library's descriptor, which is registered with the
// runtime's netpoller. All methods may be called from any goroutine.
type FD struct {
	name string
	file *os.File
	raw  syscall.RawConn

	// polling is full while a goroutine is the poller; see the package
	// documentation. RawConn.Read takes a lock, on which a second caller
	// would block even if its context ends. So a goroutine first sends to
	// polling, for which a select can wait.
	polling chan struct{}
	turn    turn

	closing   chan struct{} // closed when Close begins
	closeOnce sync.Once
	closeErr  error

	// step and cancel are method values that are created once, so that a
	// wait does not allocate them.
	step   func(uintptr) bool
	cancel func()

	canceled chan struct{} // gets a value when cancel has run
}

// turn is the poller's state. Only the goroutine that is the poller (see
// FD.polling) accesses it.
type turn struct {
	ctx    context.Context // context of the poller's wait
	try    func() (done bool, err error)
	err    error       // error of the last call of try
	disarm func() bool // stops watching ctx; nil: ctx is not being watched
}

// SetNonblock switches a descriptor to non-blocking mode.
func SetNonblock(fd int) error {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("set the descriptor to non-blocking: %w", err)
	}
	return nil
}

// New registers a duplicate of fd with the netpoller. name is used in errors.
//
// New switches fd to non-blocking mode, which the duplicate shares. fd stays
// non-blocking even if New fails, and this package never closes it.
func New(fd int, name string) (*FD, error) {
	if err := SetNonblock(fd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	dup, err := Dup(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: duplicate the descriptor: %w", name, cerr.WithFiles(err))
	}
	file := os.NewFile(uintptr(dup), name)

	// NewFile does not report that the registration with the netpoller
	// failed. SetReadDeadline does, since deadlines need the netpoller.
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
		polling:  make(chan struct{}, 1),
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

// Kick makes the poller, if there is one, check its ready channel and call try
// again. That call of try sees what the caller has changed before Kick.
func (f *FD) Kick() {
	_ = f.file.SetReadDeadline(past) // fails only when closed
}

// Close wakes all waiting goroutines, and makes their calls of Wait return an
// error matching os.ErrClosed. After Close has returned, no try is running and
// none will run. Further calls of Close, even concurrent ones, also wait for
// this, and return the same error. The original descriptor stays open.
//
// Close panics if a try calls it, because it would wait for itself.
func (f *FD) Close() error {
	if calledFromTry() {
		panic("netpoll: Close called from a try function")
	}
	f.closeOnce.Do(func() {
		close(f.closing)
		f.closeErr = f.file.Close() // wakes a parked poller
		f.polling <- struct{}{}     // stays full, so that no goroutine polls again
	})
	return f.closeErr
}

// isClosing reports whether Close has begun.
func (f *FD) isClosing() bool { return fired(f.closing) }

// closedError returns the error of a wait that Close has ended.
func (f *FD) closedError() error {
	return fmt.Errorf("%s: %w", f.name, os.ErrClosed)
}

// fired reports whether c is closed or has a value. It receives the value.
func fired(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// interrupted reports whether err comes from Kick, Close or the end of a
// context, and not from a failure of the netpoller.
func (f *FD) interrupted(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || f.isClosing()
}
