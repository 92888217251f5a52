// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// note records that the call of the program that has the mutex, if there is
// one, has sent something on a way. What another thread sends is not that
// call's: a call that waits unlocks the node.
func (n *Node) note(w engine.Way) {
	if n.called && !slices.Contains(n.used, w) {
		n.used = append(n.used, w)
	}
}

// hurry is how long a call of the program waits until what it has sent has left
// the process.
const hurry = time.Second

// debt is what a call of the program has sent on a way, and is still in the
// process.
type debt struct {
	way  engine.Way
	mark uint64
}

// paid reports whether it has left, or goes to a peer that takes nothing.
func (d debt) paid() bool { return d.way.Left(d.mark) }

// debts returns the debts of the call that has the mutex. Most calls have none.
func (n *Node) debts() (all []debt) {
	for _, w := range n.used {
		if d := (debt{w, w.Mark()}); !d.paid() {
			all = append(all, d)
		}
	}
	return all
}

// await waits until what a call has sent has left the process: the program may
// end when the call returns. A peer that takes nothing makes one call wait in
// vain, and not the next ones.
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
