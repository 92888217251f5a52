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

// inquiry is an address resolution for an ID that waits for a host, since the
// node has not found the host.
type inquiry struct {
	id       *manager.ID
	from, to netip.AddrPort
	due      time.Duration // time at which the resolution fails
	at       time.Duration // time of the next search for the host; never: there is no further search
	pause    time.Duration // time from the last search to the next
}

// wait sets the time of the next search. The time between searches grows.
func (q *inquiry) wait(now time.Duration) {
	const shortest, longest = time.Millisecond, 100 * time.Millisecond
	q.pause = min(max(2*q.pause, shortest), longest)
	q.at = now + q.pause
}

// ResolveAddr resolves an address for an ID of the manager. to is the address,
// and from the source address or the zero value. If no node has the address,
// the ID gets RDMA_CM_EVENT_ADDR_ERROR after the timeout, as on a network whose
// hosts do not answer. The caller holds the node's lock.
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

// Inquires reports whether an address resolution of the ID waits for a host.
func (n *Node) Inquires(id *manager.ID) bool {
	return slices.ContainsFunc(n.cm.inquiries, func(q *inquiry) bool { return q.id == id })
}

// EndInquiry ends the address resolution of an ID that waits for a host. The ID
// gets no event.
func (n *Node) EndInquiry(id *manager.ID) {
	n.cm.inquiries = slices.DeleteFunc(n.cm.inquiries, func(q *inquiry) bool { return q.id == id })
}

// inquire searches again for the hosts for which a search is due, and fails the
// resolutions that have timed out. next is the time of the next search or
// timeout.
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
		_ = q.id.Report(librdmacm.RDMA_CM_EVENT_ADDR_ERROR, -int(syscall.ETIMEDOUT)) // fails if the device was removed
		return true
	})
	return next
}
