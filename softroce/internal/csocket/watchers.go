// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package csocket

import (
	"slices"
	"sync"
	"sync/atomic"
)

// watchers are what is notified when a socket may have changed: threads that
// wait for it, and epoll sets that have it.
type watchers struct {
	n   atomic.Int32 // number of notifiers
	mu  sync.Mutex
	all []notifier
}

// notifier is told that a socket may have changed.
type notifier interface {
	// Notify must not block, and must not call the socket.
	Notify()
}

func (w *watchers) add(n notifier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, n)
	w.n.Store(int32(len(w.all)))
}

func (w *watchers) remove(n notifier) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.all, n); i >= 0 {
		w.all = slices.Delete(w.all, i, i+1)
	}
	w.n.Store(int32(len(w.all)))
}

// notify notifies all. It must not be called with a lock that Notify takes.
func (w *watchers) notify() {
	if w.n.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.all {
		n.Notify()
	}
}

// members returns the members of epoll sets among the watchers.
func (w *watchers) members() []*member {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*member
	for _, n := range w.all {
		if m, ok := n.(*member); ok {
			all = append(all, m)
		}
	}
	return all
}
