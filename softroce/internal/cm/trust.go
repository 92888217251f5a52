// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A peer's claims about itself count only as far as the link proves them: a
// message comes from the node and the address that the Host reports. Times that
// a peer chooses are capped here, and the number of objects that wait for them
// is bounded.

const (
	// maxResponseTimeout caps the time within which a peer says it answers: 8.6
	// s. Peers on Linux say 4.3 s.
	maxResponseTimeout = 21
	// maxServiceTimeout caps the time by which a peer announces a late answer:
	// 69 s, as on Linux.
	maxServiceTimeout = 24
	// maxAckTimeout caps the acknowledgement timeout that a peer chooses for
	// the queue pair, and with it the time wait: 17 s. Peers on Linux choose
	// 2.1 s.
	maxAckTimeout = 22
	// maxTimeWaits limits the number of connections in time wait.
	maxTimeWaits = 1 << 13
)

// A peer is the remote end of a connection: a node, at one of its addresses.
type peer struct {
	node int
	addr wire.GID
}

func peerOf(node int, addr netip.Addr) peer { return peer{node, wire.GIDOf(addr)} }

// sender returns the peer that sent a message.
func (in MAD) sender() peer { return peerOf(in.Node, in.Src) }

// A party is the unit for which bounds count: a node or, where the link does
// not identify nodes, the addresses that one host may have. With IPv6, these
// are a network of 2^64 addresses.
type party struct {
	node   int
	prefix netip.Prefix
}

func partyOf(node int, addr netip.Addr) party {
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	prefix, _ := addr.WithZone("").Prefix(bits) // the zero Prefix if addr is not valid
	return party{node, prefix}
}

// isHost reports whether an address can be that of a host.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() &&
		!(a.Is4() && (a.As4()[0] == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})))
}

// isOf reports whether a message comes from c's peer: from the node that has
// answered or else was asked last.
func (c *conn) isOf(in MAD) bool {
	return in.Node == cmp.Or(c.node, c.asked) && wire.GIDOf(c.peer) == wire.GIDOf(in.Src) && wire.GIDOf(c.local) == wire.GIDOf(in.Dst)
}

// hasRoom reports whether one more request may be queued for the program. A
// full queue makes room by dropping the newest request of the party that would
// have the most. If that is the sender's own party, the request must be from
// another address that has more requests queued. The peer repeats a dropped
// request.
func (id *ID) hasRoom(in MAD) bool {
	if id.backlog > 0 {
		return true
	}
	var requests []*Event
	for _, e := range id.channel.events {
		if e.owner == id && e.ID != id {
			requests = append(requests, e)
		}
	}
	from := most(requests, (*Event).party, in.party(), 1)
	requests = slices.DeleteFunc(requests, func(e *Event) bool { return e.party() != from })
	same := 0
	if from == in.party() {
		same = 1
	}
	address := most(requests, (*Event).sender, in.sender(), same)
	if address == in.sender() {
		return false
	}
	for _, e := range slices.Backward(requests) {
		if e.sender() == address {
			id.dismiss(e)
			break
		}
	}
	return true
}

// most returns the source with the most requests, or asker if none has more
// than asker would have with more additional ones.
func most[T comparable](requests []*Event, of func(*Event) T, asker T, more int) T {
	waiting := map[T]int{asker: more}
	for _, e := range requests {
		waiting[of(e)]++
	}
	best := asker
	for _, e := range requests {
		if from := of(e); waiting[from] > waiting[best] {
			best = from
		}
	}
	return best
}

func (e *Event) sender() peer { return e.ID.conn.end() }
func (e *Event) party() party { return e.ID.conn.party() }

// dismiss drops a request that is queued for the program.
func (id *ID) dismiss(request *Event) {
	id.channel.take(func(e *Event) bool { return e == request })
	id.backlog++
	request.ID.conn.reset()
	request.ID.removed = true
	delete(id.m.ids, request.ID)
}

func (in MAD) party() party  { return partyOf(in.Node, in.Src) }
func (c *conn) party() party { return partyOf(c.node, c.peer) }

// boundTimeWaits ends time waits early if there are too many: the older half of
// those of the party that has the most.
func (m *Manager) boundTimeWaits() {
	if m.timeWaits < maxTimeWaits {
		return
	}
	waiting := map[party][]*conn{}
	var most party
	for _, c := range m.timers {
		if c.state != connTimeWait {
			continue
		}
		p := c.party()
		waiting[p] = append(waiting[p], c)
		if len(waiting[p]) > len(waiting[most]) {
			most = p
		}
	}
	ended := waiting[most]
	slices.SortFunc(ended, func(a, b *conn) int { return cmp.Compare(a.serial, b.serial) })
	for _, c := range ended[:(len(ended)+1)/2] {
		c.endTimeWait()
	}
}

// endTimeWait ends the time wait of c.
func (c *conn) endTimeWait() {
	c.reset()
	c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT})
}

// peersTime returns the time that a peer's code stands for, capped at the code
// most.
func peersTime(code, most uint8) time.Duration { return wire.LinuxCMTimeout(min(code, most)) }
