// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"context"
	"errors"
	"iter"
	"os"
	"syscall"
)

// fromKernel is the multicast group of messages from the kernel itself, rather
// than from udev.
const fromKernel = 1

// Listener receives events about devices since it was made.
type Listener struct{ socket *os.File }

// Listen makes a Listener. It needs no privileges.
func Listen() (*Listener, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, syscall.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK, Groups: fromKernel}); err != nil {
		return nil, errors.Join(os.NewSyscallError("bind", err), syscall.Close(fd))
	}
	return &Listener{os.NewFile(uintptr(fd), "the kernel's events")}, nil // the file waits on the netpoller
}

// Events returns the events until ctx ends, which closes the Listener.
func (l *Listener) Events(ctx context.Context) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		defer context.AfterFunc(ctx, func() { _ = l.socket.Close() })()
		for {
			ev, err := l.next()
			if err != nil || !yield(ev) {
				return
			}
		}
	}
}

// next waits for an event.
func (l *Listener) next() (Event, error) {
	message := make([]byte, os.Getpagesize())
	for {
		n, err := l.socket.Read(message)
		if errors.Is(err, syscall.ENOBUFS) {
			return Event{}, nil // some events were lost
		}
		if err != nil {
			return Event{}, err
		}
		if ev, ok := parse(message[:n]); ok {
			return ev, nil
		}
	}
}
