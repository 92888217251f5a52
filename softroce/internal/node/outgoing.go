// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// note records that something is being sent on the way w, if a call of the
// program holds the mutex. What the worker sends is not recorded: the worker
// runs only while no call holds the mutex.
func (n *Node) note(w engine.Way) {
	if n.called && !slices.Contains(n.used, w) {
		n.used = append(n.used, w)
	}
}

// leaveTimeout is the longest time for which a call of the program waits until
// its packets have left the process.
const leaveTimeout = time.Second

// pending stands for everything that was sent on a way before its Mark returned
// mark, some of which has not left the process yet.
type pending struct {
	way  engine.Way
	mark uint64
}

// hasLeft reports whether everything for which d stands has left the process.
// It also returns true if the way was given up.
func (d pending) hasLeft() bool { return d.way.Left(d.mark) }

// pending returns what has not left the process, for each way on which the call
// that holds the mutex has sent something. For most calls, the result is empty.
func (n *Node) pending() (all []pending) {
	for _, w := range n.used {
		if d := (pending{w, w.Mark()}); !d.hasLeft() {
			all = append(all, d)
		}
	}
	return all
}

// await waits until everything in all has left the process, since the program
// may end when its call returns. It waits for leaveTimeout at most. Then it
// gives the ways up, so that a peer that takes nothing delays only one call.
func await(all []pending) {
	for until := time.Now().Add(leaveTimeout); ; time.Sleep(100 * time.Microsecond) {
		if all = slices.DeleteFunc(all, pending.hasLeft); len(all) == 0 {
			return
		}
		if !time.Now().Before(until) {
			break
		}
	}
	for _, d := range all {
		d.way.GiveUp()
	}
}
