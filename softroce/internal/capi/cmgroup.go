// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// group is a multicast group that an ID has joined, or is joining.
type group struct {
	addr     netip.Addr
	context  uintptr // value that the program gave for the group's events
	sendOnly bool    // whether the ID only sends to the group, so that its queue pair is not attached to the group
	acked    int     // number of the group's events that the program has acknowledged
}

// familyIB is AF_IB, the family of native InfiniBand addresses, which the
// device does not support.
const familyIB = 27

func init() {
	cm.JoinMulticast = func(c *librdmacm.CmId, addr *librdmacm.Sockaddr, context uintptr) syscall.Errno {
		return join(c, addr, librdmacm.RDMA_MC_JOIN_FLAG_FULLMEMBER, context)
	}
	cm.JoinMulticastEx = func(c *librdmacm.CmId, a *librdmacm.CmJoinMcAttrEx, context uintptr) syscall.Errno {
		const needed = librdmacm.RDMA_CM_JOIN_MC_ATTR_ADDRESS | librdmacm.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS
		if a.CompMask >= librdmacm.RDMA_CM_JOIN_MC_ATTR_RESERVED {
			return syscall.ENOTSUP
		}
		if a.CompMask&needed != needed {
			return syscall.EINVAL
		}
		return join(c, a.Addr, a.JoinFlags, context)
	}
	cm.LeaveMulticast = func(c *librdmacm.CmId, addr *librdmacm.Sockaddr) syscall.Errno {
		return withID(c, func(l *cmLibrary, i *id) syscall.Errno { return l.leave(i, addr) })
	}
}

func join(c *librdmacm.CmId, to *librdmacm.Sockaddr, flags librdmacm.CmMcJoinFlags, context uintptr) syscall.Errno {
	return completed(c, func(_ *cmLibrary, i *id) syscall.Errno {
		if to != nil && to.SaFamily == familyIB {
			return syscall.EOPNOTSUPP
		}
		addr, ok := parseSockaddr(to)
		if !ok {
			return syscall.EINVAL
		}
		g := &group{
			addr: addr.Addr(), context: context,
			sendOnly: flags == librdmacm.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		}
		if err := i.e.JoinMulticast(g.addr, flags, g); err != nil {
			return errno(err)
		}
		i.groups = append(i.groups, g)
		return 0
	})
}

// attach attaches the queue pair of an ID to a group. It does nothing if the ID
// has no queue pair, or has joined the group for sending only.
func (l *cmLibrary) attach(i *id, g *group) syscall.Errno {
	if i.c.Qp == nil || g.sendOnly {
		return 0
	}
	q := l.qps[i.c.Qp]
	if q == nil || !l.isOpen(q.c.Context) {
		return syscall.EINVAL
	}
	return errno(l.Attach(q.e, wire.GIDOf(g.addr)))
}

// leave ends a membership of the ID in the group with that address. If the ID
// has joined several times, that is the newest membership. leave waits until
// the program has acknowledged the events of the membership.
func (l *cmLibrary) leave(i *id, from *librdmacm.Sockaddr) syscall.Errno {
	addr, ok := parseSockaddr(from)
	if !ok {
		return syscall.EINVAL
	}
	for at, g := range slices.Backward(i.groups) {
		if g.addr != addr.Addr() {
			continue
		}
		i.groups = slices.Delete(i.groups, at, at+1)
		if q := l.qps[i.c.Qp]; q != nil && !g.sendOnly {
			_ = l.Detach(q.e, wire.GIDOf(g.addr)) // fails if the program has already detached it
		}
		reported, err := i.e.LeaveMulticast(g.addr)
		if err != nil {
			return errno(err)
		}
		l.awaitAcks(&g.acked, reported)
		return 0
	}
	return syscall.EADDRNOTAVAIL
}
