// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"slices"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// outgoing is the node as its devices see it: the way of packets out of the process. Its methods are called with the mutex.
type outgoing node

// Flush gives the system what sockets have kept.
func (o *outgoing) Flush() {
	if o.internet != nil {
		o.internet.flush()
	}
}

// Idle reports whether nothing is in the process that was sent.
func (o *outgoing) Idle() bool {
	switch {
	case o.internet != nil:
		return o.internet.idle()
	case o.link != nil:
		return o.link.Idle()
	}
	return true
}

// Way returns the way of packets from an address to a queue pair, nil if they
// stay in the process.
func (o *outgoing) Way(src, dst wire.GID, qpn uint32) engine.Way {
	slot := int(qpn >> qpnBits)
	switch {
	case o.internet != nil:
		if s := o.internet.sockets[src]; s != nil && !o.device.Has(dst) {
			return s
		}
	case o.link == nil || slot == o.slot || slot == 0:
	case qpn == wire.MulticastQP:
		return o.link.Way(link.Slots)
	default:
		return o.link.Way(slot)
	}
	return nil
}

// note notes that the call of the program's that has the mutex, if there is
// one, has sent something on a way.
func (n *node) note(w engine.Way) {
	if n.called && !slices.Contains(n.used, w) {
		n.used = append(n.used, w)
	}
}

// standAside calls wait, which gives the mutex to others and takes it again, in
// a call of the program's. What these send is not this call's.
func (n *node) standAside(wait func()) {
	used := n.used
	n.called, n.used = false, nil
	wait()
	n.called, n.used = true, used
}

// hurry is how long a call of the program's waits until what it has sent has left the process.
const hurry = time.Second

// debt is what a call of the program's has sent on a way, and is still in the
// process.
type debt struct {
	way  engine.Way
	mark uint64
}

// paid reports whether it has left, or goes to a peer that takes nothing.
func (d debt) paid() bool { return d.way.Left(d.mark) }

// debts returns what the call of the program's that has the mutex owes. Mostly
// that is nothing.
func (n *node) debts() (all []debt) {
	for _, w := range n.used {
		if d := (debt{w, w.Mark()}); !d.paid() {
			all = append(all, d)
		}
	}
	return all
}

// await waits until what a call has sent has left the process: the program may
// end when it returns. A peer that takes nothing makes one call wait in vain,
// not the next ones.
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
