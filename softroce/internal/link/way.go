// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"iter"
	"maps"
)

// Way is the way of frames to one node, or to all nodes. Its methods may be
// called concurrently.
type Way struct {
	link *Link
	slot int // slot of the node; Slots: all nodes
}

// Way returns the way to the node with that slot. Way(Slots) returns the way to
// all nodes.
func (l *Link) Way(slot int) *Way { return &l.ways[slot] }

// makeWays creates the ways to all slots.
func (l *Link) makeWays() {
	for slot := range l.ways {
		l.ways[slot] = Way{l, slot}
	}
}

// Idle reports whether no frame waits for room in a ring. Frames in a ring
// reach their node even if this process ends.
func (l *Link) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting == 0
}

// Mark returns a number for Left that stands for all frames sent so far. It
// returns 0 if none of them waits in this process.
func (w *Way) Mark() (mark uint64) {
	w.link.mu.Lock()
	defer w.link.mu.Unlock()
	if w.link.waiting == 0 {
		return 0
	}
	return w.link.waited
}

// Left reports whether the frames that were sent on the way before Mark
// returned mark have left this process or are lost. It ignores nodes that
// GiveUp has given up.
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

// GiveUp makes Left ignore the nodes on the way for which frames wait, each
// until it reads a frame again.
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
