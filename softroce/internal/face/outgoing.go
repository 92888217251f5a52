// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
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

// Mark remembers what is still in the process.
func (o *outgoing) Mark() (left bool) {
	switch {
	case o.internet != nil:
		return o.internet.mark()
	case o.link != nil:
		return o.link.Mark()
	}
	return true
}

// Left reports whether what Mark remembered has left the process.
func (o *outgoing) Left() bool {
	switch {
	case o.internet != nil:
		return o.internet.left()
	case o.link != nil:
		return o.link.Left()
	}
	return true
}

// GiveUp makes Mark ignore the neighbours or sockets that what it remembered waits for.
func (o *outgoing) GiveUp() {
	switch {
	case o.internet != nil:
		o.internet.giveUp()
	case o.link != nil:
		o.link.GiveUp()
	}
}

// Outside reports whether a queue pair's peer is in another process.
func (o *outgoing) Outside(q *engine.QP) bool {
	gid, qpn, connected := q.Peer()
	if o.internet != nil {
		return connected && !o.device.Has(wire.GID(*gid.Raw()))
	}
	return connected && o.link != nil && int(qpn>>qpnBits) != o.slot
}

// hurry is how long a call of the program's waits until what it has sent has left the process.
const hurry = time.Second

// awaitOutgoing waits until what a call has sent has left the process: the program may end when it returns. Mostly it has.
func (n *node) awaitOutgoing() {
	for until := time.Now().Add(hurry); time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
		n.mu.Lock()
		behind := n.behind()
		n.mu.Unlock()
		if !behind {
			return
		}
	}
}

// behind reports whether something that was sent is still in the process, and may leave it.
func (n *node) behind() bool {
	switch {
	case n.internet != nil:
		return n.internet.blocked()
	case n.link != nil:
		return n.link.Behind()
	}
	return false
}
