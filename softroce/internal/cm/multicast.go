// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// group is a multicast group that an ID has joined.
type group struct {
	addr     netip.Addr
	sendOnly bool
	reported int // number of the group's events that Next has returned
}

// errNotSupported is the kernel's ENOTSUPP, an errno that libc does not define.
const errNotSupported = syscall.Errno(524)

// JoinMulticast is rdma_join_multicast_ex. It queues MULTICAST_JOIN with the
// given context before it returns. It does not support IPv6 groups.
func (id *ID) JoinMulticast(addr netip.Addr, flags librdmacm.CmMcJoinFlags, context any) error {
	switch {
	case id.removed:
		return syscall.ENXIO
	case !addr.IsValid(), flags >= librdmacm.RDMA_MC_JOIN_FLAG_RESERVED,
		id.port.Device == nil,
		id.state != stateBound && id.state != stateAddrResolved,
		id.qpType != libibverbs.IBV_QPT_UD,
		addr.IsUnspecified():
		return syscall.EINVAL
	case !addr.Is4():
		return errNotSupported
	}
	g := &group{addr: addr, sendOnly: flags == librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER}
	if !g.sendOnly {
		if err := id.m.host.JoinMulticast(id.port, addr); err != nil {
			return err
		}
	}
	id.setDefaultQKey()
	id.groups = append(id.groups, g)
	path := Path{DGID: wire.GIDOf(addr), HopLimit: hopLimit}
	id.report(&Event{
		Type:    librdmacm.RDMA_CM_EVENT_MULTICAST_JOIN,
		Context: context,
		UD:      UDParam{AhAttr: path.ahAttr(id.port), QPNum: wire.MulticastQP, QKey: id.qkey},
		group:   g,
	})
	return nil
}

// LeaveMulticast leaves a group, as rdma_leave_multicast does, but does not
// wait for acknowledgements. It drops the queued events of that membership.
// reported is the number of its events that Next has returned. LeaveMulticast
// fails with EADDRNOTAVAIL if the ID is not in the group.
func (id *ID) LeaveMulticast(addr netip.Addr) (reported int, err error) {
	if id.removed {
		return 0, syscall.ENXIO
	}
	// The newest membership first, as in librdmacm.
	for _, g := range slices.Backward(id.groups) {
		if g.addr == addr {
			id.leave(g)
			id.channel.take(func(e *Event) bool { return e.group == g })
			return g.reported, nil
		}
	}
	return 0, syscall.EADDRNOTAVAIL
}

// leave ends the ID's membership in a group.
func (id *ID) leave(g *group) {
	id.groups = slices.DeleteFunc(id.groups, func(other *group) bool { return other == g })
	if !g.sendOnly {
		id.m.host.LeaveMulticast(id.port, g.addr)
	}
}

// setDefaultQKey gives the ID the default Q_Key if it has none.
func (id *ID) setDefaultQKey() {
	if id.qkey == 0 {
		id.qkey = librdmacm.RDMA_UDP_QKEY
	}
}
