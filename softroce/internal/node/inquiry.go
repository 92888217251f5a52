// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// inquiry is a call of ResolveAddr that waits for a host that does not answer.
type inquiry struct {
	id       *manager.ID
	from, to netip.AddrPort
	due      time.Duration // when it ends without an answer
	at       time.Duration // when to look again for the host; never, if only due counts
	pause    time.Duration
}

// wait makes the next look later than the last one.
func (q *inquiry) wait(now time.Duration) {
	const shortest, longest = time.Millisecond, 100 * time.Millisecond
	q.pause = min(max(2*q.pause, shortest), longest)
	q.at = now + q.pause
}

// ResolveAddr resolves an address for an ID of the manager. As on a network, a
// host that does not exist gives no answer: the ID gets
// RDMA_CM_EVENT_ADDR_ERROR after the timeout. The caller has the node locked.
func (n *Node) ResolveAddr(id *manager.ID, from, to netip.AddrPort, timeout time.Duration) error {
	if n.Inquires(id) {
		return syscall.EINVAL
	}
	err := id.ResolveAddr(from, to)
	if err != errNoHost {
		return err
	}
	q := &inquiry{id: id, from: from, to: to, due: n.Now() + max(timeout, 0), at: never}
	if n.network.isPublic() {
		q.wait(n.Now())
	}
	n.cm.inquiries = append(n.cm.inquiries, q)
	return nil
}

// Inquires reports whether an ID waits for a host.
func (n *Node) Inquires(id *manager.ID) bool {
	return slices.ContainsFunc(n.cm.inquiries, func(q *inquiry) bool { return q.id == id })
}

// EndInquiry ends the wait of an ID for a host, without an event.
func (n *Node) EndInquiry(id *manager.ID) {
	n.cm.inquiries = slices.DeleteFunc(n.cm.inquiries, func(q *inquiry) bool { return q.id == id })
}

// inquire looks again for hosts, and ends the inquiries whose time is over. It
// returns the time of the next look.
func (c *connections) inquire(now time.Duration) (next time.Duration) {
	next = never
	c.inquiries = slices.DeleteFunc(c.inquiries, func(q *inquiry) bool {
		if q.at <= now {
			if q.id.ResolveAddr(q.from, q.to) == nil {
				return true
			}
			q.wait(now)
		}
		if q.due > now {
			next = min(next, q.due, q.at)
			return false
		}
		_ = q.id.Report(librdmacm.RDMA_CM_EVENT_ADDR_ERROR, -int(syscall.ETIMEDOUT)) // the device may be gone
		return true
	})
	return next
}
