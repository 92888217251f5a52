// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"cmp"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// What a message says about its sender is not trusted: it counts only if it
// agrees with the node and the address that the Host reports. Times that a peer
// chooses are limited, and so is the number of objects that exist during these
// times.

const (
	// maxResponseTimeout limits the code of the time within which a peer
	// promises to answer: 8.6 s. Linux promises 4.3 s.
	maxResponseTimeout = 21
	// maxServiceTimeout limits the code of the time that a peer's MRA
	// announces: 69 s, as on Linux.
	maxServiceTimeout = 24
	// maxAckTimeout limits the code of the acknowledgement timeout that a
	// peer chooses for the queue pair: 17 s. Linux chooses 2.1 s. The time
	// wait of a connection is as long as this timeout.
	maxAckTimeout = 22
	// maxTimeWaits limits the number of connections in time wait.
	maxTimeWaits = 1 << 13
)

// peer is the remote end of a connection: a node, at one of its addresses.
type peer struct {
	node int
	addr wire.GID
}

// peerOf returns the peer for a node and its address.
func peerOf(node int, addr netip.Addr) peer { return peer{node, wire.GIDOf(addr)} }

// sender returns the peer that sent a message.
func (in MAD) sender() peer { return peerOf(in.Node, in.Src) }

// party is a source of requests to which limits apply. It is a node on this
// machine, or a host on the network. For IPv6, it is a whole /64 network, as a
// host may have all its addresses.
type party struct {
	node   int
	prefix netip.Prefix
}

// partyOf returns the party of a node and its address.
func partyOf(node int, addr netip.Addr) party {
	bits := 64
	if addr.Is4() {
		bits = 32
	}
	prefix, _ := addr.WithZone("").Prefix(bits) // the zero Prefix if addr is not valid
	return party{node, prefix}
}

// isHost reports whether the address a can be that of a host.
func isHost(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsMulticast() &&
		!(a.Is4() && (a.As4()[0] == 0 || a == netip.AddrFrom4([4]byte{255, 255, 255, 255})))
}

// isOf reports whether a message comes from c's peer: from its address and its
// node. Before the peer has answered, its node is the one that got the last
// request.
func (c *conn) isOf(in MAD) bool {
	return in.Node == cmp.Or(c.node, c.asked) && wire.GIDOf(c.peer) == wire.GIDOf(in.Src) && wire.GIDOf(c.local) == wire.GIDOf(in.Dst)
}

// hasRoom reports whether the request in the message in may be queued for the
// program. If the queue is full, one request must be dropped. hasRoom picks the
// party from which most requests come, and of this party the address from which
// most requests come. The new request counts as well. If that address is the
// sender's, hasRoom returns false. Otherwise it drops the newest request from
// that address. A peer repeats a request that was dropped.
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

// most returns the source from which most requests come. of returns the source
// of a request. asker is one of the sources, from which extra further requests
// come. In a tie, most prefers asker.
func most[T comparable](requests []*Event, of func(*Event) T, asker T, extra int) T {
	waiting := map[T]int{asker: extra}
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

// sender returns the peer that sent the request.
func (e *Event) sender() peer { return e.ID.conn.end() }

// party returns the party that sent the request.
func (e *Event) party() party { return e.ID.conn.party() }

// dismiss drops a queued request, and the ID that was created for it.
func (id *ID) dismiss(request *Event) {
	id.channel.take(func(e *Event) bool { return e == request })
	id.backlog++
	request.ID.conn.reset()
	request.ID.removed = true
	delete(id.m.ids, request.ID)
}

// party returns the party that sent a message.
func (in MAD) party() party { return partyOf(in.Node, in.Src) }

// party returns the party of c's peer.
func (c *conn) party() party { return partyOf(c.node, c.peer) }

// boundTimeWaits ends time waits early if there are too many: of the party that
// has most of them, it ends the older half.
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
	sort.Slice(ended, func(i, j int) bool { return ended[i].serial < ended[j].serial })
	for _, c := range ended[:(len(ended)+1)/2] {
		c.endTimeWait()
	}
}

// endTimeWait ends the time wait of c and reports TIMEWAIT_EXIT.
func (c *conn) endTimeWait() {
	c.reset()
	c.report(&Event{Type: librdmacm.RDMA_CM_EVENT_TIMEWAIT_EXIT})
}

// peersTime returns the time for a code that a peer chose. If the code is above
// limit, limit counts instead.
func peersTime(code, limit uint8) time.Duration { return wire.LinuxCMTimeout(min(code, limit)) }
