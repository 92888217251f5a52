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

// GroupConfig says how to be in a multicast group. The zero value is usable,
// and so is a nil *GroupConfig.
type GroupConfig struct {
	// LocalAddr is an address of the network interface to join on, as host;
	// empty lets the system's routes choose, among which there must be one to
	// the group then.
	LocalAddr string
	// SendOnly keeps the group's datagrams away.
	SendOnly bool
	// NoLoopback keeps this end's own datagrams from coming back to it. It
	// fails with errors.ErrUnsupported on devices that cannot do that.
	NoLoopback bool
	// PortSpace may be PortSpaceIPoIB, for groups of IPoIB; 0 stands for
	// PortSpaceUDP.
	PortSpace PortSpace

	// What follows is as in DatagramConfig.

	SendQueue, RecvQueue, Segments, MaxInline int
	PD                                        *ibverbs.PD
	Setup                                     func(*DatagramConn) error
}

func (c *GroupConfig) datagrams() DatagramConfig {
	return (&DatagramConfig{
		SendQueue: c.SendQueue, RecvQueue: c.RecvQueue, Segments: c.Segments, MaxInline: c.MaxInline,
		PD: c.PD, Setup: c.Setup,
	}).withDefaults()
}

// JoinGroup makes this host a member of a multicast group and returns an end
// whose peer is the group: Send sends to all members, and their datagrams come
// into its receives, along with those that others send to it alone. The
// membership ends with Close. A subnet that loses the group ends the
// DatagramConn, with an *EventError of EventMulticastError. The config may be
// nil.
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

// joinFrom makes an end on the device that has the local address, and joins.
func (c *GroupConfig) joinFrom(local netip.Addr, join func(*DatagramConn) error) (*DatagramConn, error) {
	ds, id, err := c.located(local)
	if err != nil {
		return nil, err
	}
	var flags ibverbs.QPCreateFlags
	if c.NoLoopback {
		flags = ibverbs.QPCreateBlockSelfMulticast
	}
	conn, err := newDatagramConn(ds, id, c.datagrams(), flags)
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

// located makes an id that knows on which device to join. The caller is a user
// of the dispatcher then.
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
				cerr.InvalidAs(syscall.EAFNOSUPPORT, "GroupConfig.LocalAddr is of another family than the group"))
		}
		return addr.Addr(), err
	}
	// A socket for that port shows what the system's routes choose; nothing is sent.
	conn, err := new(net.Dialer).DialContext(ctx, "udp", netip.AddrPortFrom(group, 9).String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no route to the group; set GroupConfig.LocalAddr: %w", err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// multicastQP stands for every member's queue pair.
const multicastQP = 0xFFFFFF

// join enters the group and makes it the peer.
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

// joined makes the group, which the event tells of, the peer.
func (c *DatagramConn) joined(ctx context.Context, ev *Event) error {
	return c.setPeer(ctx, Peer{Path: ev.Path, QPNum: ev.QPNum, QKey: ev.QKey})
}

// joinIPv6 does what Linux does not for groups of IPv6 on RoCE v2, but does for
// those of IPv4: the network interface is to be in the group too, and the
// group's address is the GID.
func (c *DatagramConn) joinIPv6(ctx context.Context, group netip.Addr, flags JoinFlags) error {
	from, err := c.pd.Device().FindGID(c.local.Addr())
	if err != nil {
		return err
	}
	gid := ibverbs.GIDFromAddr(group)
	if flags == JoinFull {
		nic, err := net.InterfaceByIndex(from.NetDevIndex)
		if err != nil {
			return err
		}
		// As long as the socket is open. Nobody sends to its port, which the
		// system chooses.
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

// multicastHops is what Linux has for groups of IPv4.
const multicastHops = 64

// leaveGroup closes the socket of joinIPv6; everything else that makes a member
// ends with the queue pair.
func (c *DatagramConn) leaveGroup() error {
	if c.membership == nil {
		return nil
	}
	_ = c.membership.Close() // fails only the second time
	c.membership = nil
	return nil
}

// JoinGroupIB is JoinGroup for an address of InfiniBand's own: the group's GID
// as it is, instead of the one that an IP address stands for. The config must
// have a LocalAddr, because there are no routes to such an address.
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
		return nil, cerr.Refuse("rdma_bind_addr", "", "GroupConfig.LocalAddr is needed")
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

// groupSender returns the way back to who sent a datagram to the group that is
// at the end of a path, and false for other datagrams. C cannot tell, because it
// looks for the group's address among those of the port.
func groupSender(group ibverbs.AHAttr, wc *ibverbs.WC, header []byte) (ibverbs.AHAttr, bool) {
	// RoCE v2 with IPv4 has that one's header in the second half.
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
