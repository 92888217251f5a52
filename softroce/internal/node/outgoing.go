// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// note records that something was sent on the way w, if a call of the program
// holds the mutex. Only what that call sends is recorded: a call that waits
// unlocks the node.
func (n *Node) note(w engine.Way) {
	if n.called && !slices.Contains(n.used, w) {
		n.used = append(n.used, w)
	}
}

// hurry is the longest time that a call of the program waits until its packets
// have left the process.
const hurry = time.Second

// debt is what a call of the program has sent on a way up to mark, and what has
// not left the process yet.
type debt struct {
	way  engine.Way
	mark uint64
}

// paid reports whether everything up to the mark has left the process. It is
// also true if the way has been given up.
func (d debt) paid() bool { return d.way.Left(d.mark) }

// debts returns what the call that holds the mutex has sent and what has not
// left the process. For most calls that is nothing.
func (n *Node) debts() (all []debt) {
	for _, w := range n.used {
		if d := (debt{w, w.Mark()}); !d.paid() {
			all = append(all, d)
		}
	}
	return all
}

// await waits until everything in all has left the process, since the program
// may end when the call returns. It waits for hurry at most and then gives the
// ways up, so that a peer that takes nothing delays only one call.
func await(all []debt) {
	for until := time.Now().Add(hurry); ; time.Sleep(100 * time.Microsecond) {
		if all = slices.DeleteFunc(all, debt.paid); len(all) == 0 {
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
