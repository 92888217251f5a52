// SPDX-License-Identifier: Apache-2.0

// Package turns limits how many threads the beginning and the end of connections take: what C creates or destroys holds one, mostly for
// milliseconds.
package turns

import "time"

// Begin waits for a turn at destroying something, and returns what ends the turn. A program that closes thousands of connections at once
// needs few threads for that.
//
// A device may take a minute to destroy one queue pair, and nobody else should wait so long. So a turn that takes longer than a second
// does not count any more, and another begins in its place. Who waits for a turn has to wait for those before it, a second for every 16
// at most. That bounds the threads, too, if everything is held up: a Go program with 10,000 of them ends.
func Begin() (end func()) { return ends.begin() }

// Make is Begin for a call of C that is a step in making a connection. A thousand dials at once so do not fight each other for processors
// with a thread each.
func Make() (end func()) { return makes.begin() }

var ends, makes = turns{make(chan struct{}, atOnce), time.Second}, turns{make(chan struct{}, atOnce), time.Second}

const atOnce = 16

type turns struct {
	places   chan struct{} // full while as many as may have a turn
	patience time.Duration // how long a turn counts
}

func (t *turns) begin() (end func()) {
	t.places <- struct{}{}
	timer := time.AfterFunc(t.patience, t.leave)
	return func() {
		if timer.Stop() { // else it has left
			t.leave()
		}
	}
}

func (t *turns) leave() { <-t.places }
