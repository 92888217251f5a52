// SPDX-License-Identifier: Apache-2.0

package ib

import (
	"context"
	"time"

	"github.com/verbena-go/verbena/internal/bridge"
	"github.com/verbena-go/verbena/rdmacm"
)

// Bind binds an ID to a local address; see rdma_bind_addr(3). A zero GID stands
// for every GID of every device.
func Bind(id *rdmacm.ID, addr rdmacm.IBAddr) error { return bridge.IB.Bind(id, addr) }

// Resolve finds the device for a destination, like ID.ResolveAddr; see
// rdma_resolve_addr(3). EventAddrResolved or EventAddrError follows. src may be
// nil.
func Resolve(id *rdmacm.ID, src *rdmacm.IBAddr, dst rdmacm.IBAddr, timeout time.Duration) error {
	return bridge.IB.Resolve(id, src, dst, timeout)
}

// SetPaths sets the paths to the peer, of which Linux uses the first whose Flags
// are those of a connection. Call it instead of ID.ResolveRoute, also with IP
// addresses. EventRouteResolved follows. See rdma_set_option(3).
func SetPaths(id *rdmacm.ID, paths ...rdmacm.IBPath) error { return bridge.IB.SetPaths(id, paths) }

// LocalAddr returns the local address, or the zero value if the ID has no
// InfiniBand address.
func LocalAddr(id *rdmacm.ID) rdmacm.IBAddr { return bridge.IB.LocalAddr(id).(rdmacm.IBAddr) }

// RemoteAddr returns the peer's address, or the zero value if it has no
// InfiniBand address.
func RemoteAddr(id *rdmacm.ID) rdmacm.IBAddr { return bridge.IB.RemoteAddr(id).(rdmacm.IBAddr) }

// JoinMulticast joins a multicast group, like ID.JoinMulticast, but uses the
// group's GID as it is instead of mapping an IP address to one.
func JoinMulticast(id *rdmacm.ID, group rdmacm.IBAddr, flags rdmacm.JoinFlags, value any) error {
	return bridge.IB.Join(id, group, flags, value)
}

// LeaveMulticast leaves a group that JoinMulticast joined, or cancels the join.
// It fails with an error matching syscall.EADDRNOTAVAIL if the ID is not in the
// group.
func LeaveMulticast(id *rdmacm.ID, group rdmacm.IBAddr) error { return bridge.IB.Leave(id, group) }

// JoinGroup joins a multicast group, like rdmacm.JoinGroup, but uses the group's
// GID as it is instead of mapping an IP address to one. The config must have a
// LocalAddr, because there are no routes to InfiniBand addresses.
func JoinGroup(ctx context.Context, group rdmacm.IBAddr, config *rdmacm.GroupConfig) (*rdmacm.DatagramConn, error) {
	conn, err := bridge.IB.JoinGroup(ctx, group, config)
	if err != nil {
		return nil, err
	}
	return conn.(*rdmacm.DatagramConn), nil
}
