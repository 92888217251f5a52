// SPDX-License-Identifier: Apache-2.0

// Package turns limits the number of threads that create and destroy objects of
// connections. Each such call of C occupies a thread, usually for milliseconds.
package turns

import "time"

// Begin waits until the caller may destroy an object. The caller must call end
// afterwards. At most 16 callers may do so at a time, so a program that closes
// thousands of connections at once needs few threads.
//
// A device may need a minute to destroy one queue pair, and other callers must
// not wait that long. So a caller counts for a second at most, and then another
// may begin. A caller waits at most one second for each 16 callers before it.
// This also limits the number of threads if all calls take long: a Go program
// with 10,000 threads crashes.
func Begin() (end func()) { return ends.begin() }

// Make is like Begin, for a call of C that creates an object of a connection.
// It has a limit of its own, so that a thousand concurrent dials do not occupy
// a thousand threads.
func Make() (end func()) { return makes.begin() }

var ends, makes = turns{make(chan struct{}, atOnce), time.Second}, turns{make(chan struct{}, atOnce), time.Second}

const atOnce = 16

type turns struct {
	places   chan struct{} // full while as many callers as permitted are at work
	patience time.Duration // time after which a caller does not count any more
}

func (t *turns) begin() (end func()) {
	t.places <- struct{}{}
	timer := time.AfterFunc(t.patience, t.leave)
	return func() {
		if timer.Stop() { // false: leave was called, as the caller's time is over
			t.leave()
		}
	}
}

func (t *turns) leave() { <-t.places }
