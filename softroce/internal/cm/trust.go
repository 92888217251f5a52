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

// What a peer says about itself counts only as far as the link proves it: a
// message is from the node and the address that the Host names. Times that a
// peer chooses are capped here, and what waits for them is bounded in number.

const (
	// maxResponseTimeout caps the time in which a peer says that it answers:
	// 8.6 s. Linux's peers say 4.3 s.
	maxResponseTimeout = 21
	// maxServiceTimeout caps the time by which a peer says that its answer is
	// late: 69 s, as Linux's do.
	maxServiceTimeout = 24
	// maxAckTimeout caps the time that a peer chooses for the acknowledgements
	// of the queue pair, and so for the time wait: 17 s. Linux's peers choose
	// 2.1 s.
	maxAckTimeout = 22
	// maxTimeWaits is how many connections are in time wait at most.
	maxTimeWaits = 1 << 13
)

// A peer is an end of a connection: a node, at one of its addresses.
type peer struct {
	node int
	addr wire.GID
}

func peerOf(node int, addr netip.Addr) peer { return peer{node, wire.GIDOf(addr)} }

// sender returns the peer that a message comes from.
func (in MAD) sender() peer { return peerOf(in.Node, in.Src) }

// A party is what shares a bound: a node, and of the nodes that the link does
// not tell apart, those that one host may be. With IPv6, that is a network of
// 2^64 addresses.
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

// isHost reports whether a host can have an address.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() &&
		!(a.Is4() && (a.As4()[0] == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})))
}

// isOf reports whether a message comes from the other end of c: the node that
// has answered, or was asked last.
func (c *conn) isOf(in MAD) bool {
	return in.Node == cmp.Or(c.node, c.asked) && wire.GIDOf(c.peer) == wire.GIDOf(in.Src) && wire.GIDOf(c.local) == wire.GIDOf(in.Dst)
}

// hasRoom reports whether one more request may wait for the program. If there
// is no room and another party has more requests waiting than the sender of
// this one would have, or another address of its own party has, the newest of
// them gives up its place. Its peer repeats it.
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

// most returns the party that has sent the most requests if one has more than asker would have
// with so many more, and else asker.
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

// dismiss forgets a request that waits for the program.
func (id *ID) dismiss(request *Event) {
	id.channel.take(func(e *Event) bool { return e == request })
	id.backlog++
	request.ID.conn.reset()
	request.ID.removed = true
	delete(id.m.ids, request.ID)
}

func (in MAD) party() party  { return partyOf(in.Node, in.Src) }
func (c *conn) party() party { return partyOf(c.node, c.peer) }

// boundTimeWaits ends the time wait of some connections early if there are too
// many: of the party that has the most, the older half.
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

// endTimeWait ends the time wait.
func (c *conn) endTimeWait() {
	c.reset()
	c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT})
}

// peersTime returns the time of a code that a peer has chosen.
func peersTime(code, most uint8) time.Duration { return wire.LinuxCMTimeout(min(code, most)) }
