// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// A GroupConfig configures membership in a multicast group. The zero value and
// a nil *GroupConfig are usable.
type GroupConfig struct {
	// LocalAddr is an address of the network interface to join on, as host. If
	// empty, the system's routes determine the interface; they must include one
	// to the group.
	LocalAddr string
	// SendOnly joins the group for sending only: the group's datagrams are not
	// received.
	SendOnly bool
	// NoLoopback suppresses copies of this end's own datagrams. JoinGroup fails
	// with an error matching errors.ErrUnsupported on devices that do not
	// support it.
	NoLoopback bool
	// PortSpace may be PortSpaceIPoIB, for IPoIB groups; 0 means PortSpaceUDP.
	PortSpace PortSpace

	// Config configures the DatagramConn. PrivateData is not used.
	Config DatagramConfig
}

// JoinGroup joins a multicast group and returns a DatagramConn with the group
// as its peer. Send sends to all members. Receives take datagrams from members,
// and those that are sent only to this end. Close leaves the group. If the
// subnet loses the group, the DatagramConn ends with an *EventError for
// EventMulticastError. The config may be nil.
//
// The group's address may have a zone, such as ff02::1234%eth0.
func JoinGroup(ctx context.Context, group netip.Addr, config *GroupConfig) (*DatagramConn, error) {
	if err := ended("JoinGroup", ctx); err != nil {
		return nil, err
	}
	if config == nil {
		config = new(GroupConfig)
	}
	conn, err := config.join(ctx, group.Unmap())
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", group, err)
	}
	return conn, nil
}

func (c *GroupConfig) join(ctx context.Context, group netip.Addr) (*DatagramConn, error) {
	if _, err := groupAddr("rdma_join_multicast", group); err != nil {
		return nil, err
	}
	local, err := c.local(ctx, group)
	if err != nil {
		return nil, err
	}
	return c.joinFrom(local, func(conn *DatagramConn) error { return conn.join(ctx, group, c.joinFlags()) })
}

// joinFrom creates a DatagramConn on the device that has the local address, and
// calls join.
func (c *GroupConfig) joinFrom(local netip.Addr, join func(*DatagramConn) error) (*DatagramConn, error) {
	ds, id, err := c.located(local)
	if err != nil {
		return nil, err
	}
	var flags ibverbs.QPCreateFlags
	if c.NoLoopback {
		flags = ibverbs.QPCreateBlockSelfMulticast
	}
	conn, err := newDatagramConn(ds, id, c.Config.withDefaults(), "GroupConfig.Config", flags)
	if err != nil {
		return nil, err
	}
	if err := join(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (c *GroupConfig) joinFlags() JoinFlags {
	if c.SendOnly {
		return JoinSendOnly
	}
	return JoinFull
}

// located creates an ID bound to the local address. The caller must close the
// ID and release the dispatcher.
func (c *GroupConfig) located(local netip.Addr) (*dispatcher, *ID, error) {
	ps := cmp.Or(c.PortSpace, PortSpaceUDP)
	if err := checkDatagrams(ps); err != nil {
		return nil, nil, err
	}
	ds, id, err := newDispatchedID(ps, useDispatcher)
	if err != nil {
		return nil, nil, err
	}
	if err := id.BindAddr(netip.AddrPortFrom(local, 0)); err != nil {
		return nil, nil, errors.Join(err, id.Close(), ds.release())
	}
	return ds, id, nil
}

// local returns the address to join from.
func (c *GroupConfig) local(ctx context.Context, group netip.Addr) (netip.Addr, error) {
	if c.LocalAddr != "" {
		addr, err := lookupLocal(ctx, c.LocalAddr)
		if err == nil && addr.Addr().Is4() != group.Is4() {
			err = cerr.Argument("rdma_bind_addr", addr.Addr().String(),
				cerr.InvalidAs(syscall.EAFNOSUPPORT, "GroupConfig.LocalAddr and the group are not of the same address family"))
		}
		return addr.Addr(), err
	}
	// A UDP socket connected to the group has the address that the system's
	// routes choose. Nothing is sent.
	conn, err := new(net.Dialer).DialContext(ctx, "udp", netip.AddrPortFrom(group, 9).String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to the group; set GroupConfig.LocalAddr: %w", err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// multicastQP is the queue pair number in a datagram to a group. It addresses
// the queue pairs of all members.
const multicastQP = 0xFFFFFF

// join joins the group, and makes it the destination of Send.
func (c *DatagramConn) join(ctx context.Context, group netip.Addr, flags JoinFlags) error {
	c.local, c.remote = c.id.LocalAddr(), netip.AddrPortFrom(group, 0)
	ev, err := c.ask(ctx, func() error { return c.id.JoinMulticast(group, flags, nil) })
	if ev == nil && group.Is6() && errors.Is(err, errors.ErrUnsupported) {
		return c.joinIPv6(ctx, group, flags)
	}
	if err != nil {
		return err
	}
	return c.joined(ctx, ev)
}

// joined makes the group that ev reports the destination of Send.
func (c *DatagramConn) joined(ctx context.Context, ev *Event) error {
	return c.setPeer(ctx, Peer{Path: ev.Path, QPNum: ev.QPNum, QKey: ev.QKey})
}

// joinIPv6 joins an IPv6 group on RoCE v2. The kernel does so only for IPv4
// groups, so joinIPv6 makes the network interface a member and uses the group's
// address as the GID.
func (c *DatagramConn) joinIPv6(ctx context.Context, group netip.Addr, flags JoinFlags) error {
	from, err := c.pd.Device().BestGID(c.port, ibverbs.GIDConfig{Addr: c.local.Addr()})
	if err != nil {
		return err
	}
	gid := ibverbs.GIDFromAddr(group)
	if flags == JoinFull {
		nic, err := net.InterfaceByIndex(from.NetDevIndex)
		if err != nil {
			return err
		}
		// The membership lasts as long as the socket is open. No host sends to
		// its port, which the system chooses.
		if c.membership, err = net.ListenMulticastUDP("udp6", nic, &net.UDPAddr{IP: group.AsSlice()}); err != nil {
			return err
		}
		if err := c.qp.AttachMulticast(gid, 0); err != nil {
			return err
		}
	}
	path := ibverbs.AHAttr{Port: from.Port, DGID: gid, SGIDIndex: from.Index, HopLimit: multicastHops}
	return c.setPeer(ctx, Peer{Path: path, QPNum: multicastQP, QKey: c.qkey})
}

// multicastHops is the hop limit that Linux uses for IPv4 groups.
const multicastHops = 64

// leaveGroup closes the socket of joinIPv6. Destroying the queue pair ends
// every other part of the membership.
func (c *DatagramConn) leaveGroup() error {
	if c.membership == nil {
		return nil
	}
	_ = c.membership.Close() // fails only the second time
	c.membership = nil
	return nil
}

// JoinGroupIB joins a multicast group, like JoinGroup, but uses the group's GID
// as it is instead of mapping an IP address to one. The config must have a
// LocalAddr, because there are no routes to InfiniBand addresses.
func JoinGroupIB(ctx context.Context, group IBAddr, config *GroupConfig) (*DatagramConn, error) {
	if err := ended("JoinGroupIB", ctx); err != nil {
		return nil, err
	}
	conn, err := config.joinIB(ctx, group)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", group.GID, err)
	}
	return conn, nil
}

func (c *GroupConfig) joinIB(ctx context.Context, group IBAddr) (*DatagramConn, error) {
	if c == nil || c.LocalAddr == "" {
		return nil, cerr.Refuse("rdma_bind_addr", "", "GroupConfig.LocalAddr is empty; set it, as there are no routes to InfiniBand groups")
	}
	local, err := lookupLocal(ctx, c.LocalAddr)
	if err != nil {
		return nil, err
	}
	return c.joinFrom(local.Addr(), func(conn *DatagramConn) error {
		conn.local = conn.id.LocalAddr()
		ev, err := conn.ask(ctx, func() error { return conn.id.JoinMulticastIB(group, c.joinFlags(), nil) })
		if err != nil {
			return err
		}
		return conn.joined(ctx, ev)
	})
}

// groupSender returns the path back to the sender of a datagram, if the
// datagram was sent to a group. group is the path to the group; wc and header
// are the datagram's completion and GRH. groupSender returns false for other
// datagrams. C cannot determine the path, because it looks for the group's
// address among the addresses of the port.
func groupSender(group ibverbs.AHAttr, wc *ibverbs.WC, header []byte) (ibverbs.AHAttr, bool) {
	// RoCE v2 over IPv4 puts the IPv4 header into the second half.
	four := header[ibverbs.GRHLen/2:]
	if to := group.DGID.Addr(); to.Is4() {
		if netip.AddrFrom4([4]byte(four[16:])) != to {
			return ibverbs.AHAttr{}, false
		}
		return ibverbs.AHAttr{
			Port: group.Port, SGIDIndex: group.SGIDIndex, HopLimit: multicastHops, TrafficClass: four[1],
			DGID: ibverbs.GIDFromAddr(netip.AddrFrom4([4]byte(four[12:]))),
		}, true
	}
	if ibverbs.GID(header[24:]) != group.DGID {
		return ibverbs.AHAttr{}, false
	}
	classFlow := binary.BigEndian.Uint32(header)
	return ibverbs.AHAttr{
		Port: group.Port, DLID: uint16(wc.SLID()), SL: wc.SL(),
		DGID: ibverbs.GID(header[8:]), SGIDIndex: group.SGIDIndex, HopLimit: multicastHops,
		TrafficClass: uint8(classFlow >> 20), FlowLabel: classFlow & (1<<20 - 1),
	}, true
}
