// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"iter"
	"maps"
)

// Way is the way of frames to one node, or to all of them. Its methods may be
// called at any time.
type Way struct {
	link *Link
	slot int // Slots stands for all
}

// Way returns the way to the node in a slot, and for Slots the way to all
// nodes.
func (l *Link) Way(slot int) *Way { return &l.ways[slot] }

// makeWays makes the ways to all slots.
func (l *Link) makeWays() {
	for slot := range l.ways {
		l.ways[slot] = Way{l, slot}
	}
}

// Idle reports whether no frame waits in this process for room. A frame in a
// ring reaches the node even if this process ends.
func (l *Link) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting == 0
}

// Mark returns a number for the frames sent so far, or 0 if no frame waits in
// this process.
func (w *Way) Mark() (mark uint64) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	if w.link.waiting == 0 {
		return 0
	}
	return w.link.waited
}

// Left reports whether the frames that had been sent on the way when Mark
// returned mark have left this process, are lost, or go to a node that was
// given up.
func (w *Way) Left(mark uint64) bool {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	for p := range w.peers() {
		if len(p.waiting) > 0 && p.waiting[0].number <= mark && !p.stuck {
			return false
		}
	}
	return true
}

// GiveUp gives up the nodes on the way for which frames wait, until they read
// again.
func (w *Way) GiveUp() {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	for p := range w.peers() {
		p.stuck = len(p.waiting) > 0
	}
}

// peers returns the peers on the way. The caller holds w.link.mu.
func (w *Way) peers() iter.Seq[*peer] {
	if w.slot == Slots {
		return maps.Values(w.link.peers)
	}
	return func(yield func(*peer) bool) {
		if p := w.link.peers[w.slot]; p != nil {
			yield(p)
		}
	}
}
