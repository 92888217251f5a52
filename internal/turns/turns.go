// SPDX-License-Identifier: Apache-2.0

// Package turns limits the threads that making and ending connections takes: a
// call of C that creates or destroys something holds a thread, usually for
// milliseconds.
package turns

import "time"

// Begin waits for a turn at destroying something. The caller calls the result
// to end the turn. With turns, a program that closes thousands of connections
// at once needs few threads.
//
// A device may take a minute to destroy one queue pair, and other callers must
// not wait that long. So a turn that takes longer than a second no longer
// counts, and another begins in its place. A caller waits at most one second
// for each 16 callers before it. This also bounds the threads if all calls are
// held up: a Go program with 10,000 threads crashes.
func Begin() (end func()) { return ends.begin() }

// Make is Begin for a call of C that is a step in making a connection. So a
// thousand concurrent dials do not compete for processors with a thread each.
func Make() (end func()) { return makes.begin() }

var ends, makes = turns{make(chan struct{}, atOnce), time.Second}, turns{make(chan struct{}, atOnce), time.Second}

const atOnce = 16

type turns struct {
	places   chan struct{} // full while the most turns are taken
	patience time.Duration // how long a turn counts
}

func (t *turns) begin() (end func()) {
	t.places <- struct{}{}
	timer := time.AfterFunc(t.patience, t.leave)
	return func() {
		if timer.Stop() { // else it has left already
			t.leave()
		}
	}
}

func (t *turns) leave() { <-t.places }
