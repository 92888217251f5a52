// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/guest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// joinOn joins a group through the network interface of an address.
func joinOn(t testing.TB, ip, group netip.Addr, config rdmacm.GroupConfig) *rdmacm.DatagramConn {
	t.Helper()
	config.LocalAddr = ip.String()
	c, err := rdmacm.JoinGroup(bounded(t), group, &config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// groupsOf returns a group of each address family with the device's address.
func groupsOf(local, local6 netip.Addr) map[string]struct{ ip, group netip.Addr } {
	return map[string]struct{ ip, group netip.Addr }{
		"IPv4": {local, groupIPv4}, "IPv6": {local6, groupIPv6},
	}
}

func TestGroup(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	for name, with := range groupsOf(d.IPv4, d.IPv6) {
		t.Run(name, func(t *testing.T) {
			ctx := bounded(t)
			first := joinOn(t, with.ip, with.group, rdmacm.GroupConfig{})
			second := joinOn(t, with.ip, with.group, rdmacm.GroupConfig{})
			sender := joinOn(t, with.ip, with.group, rdmacm.GroupConfig{SendOnly: true})
			for _, c := range []*rdmacm.DatagramConn{first, second, sender} {
				require.Equal(t, netip.AddrPortFrom(with.group, 0), c.RemoteAddr())
				require.Equal(t, with.ip, c.LocalAddr().Addr())
				require.Nil(t, c.PeerData())
				require.Equal(t, with.group, c.Peer().Path.DGID.Addr())
				require.EqualValues(t, 0xFFFFFF, c.Peer().QPNum)
				require.EqualValues(t, cmQKey, c.Peer().QKey)
			}
			members := []*rdmacm.DatagramConn{first, second}
			var posted []*rdmacm.Receive
			var buffers []*ibverbs.MR
			for _, c := range members {
				mr := memory(t, c)
				r, err := c.PostRecv(mr.Sub(0, 2048))
				require.NoError(t, err)
				posted, buffers = append(posted, r), append(buffers, mr)
			}
			unheard, err := sender.PostRecv(memory(t, sender).All())
			require.NoError(t, err)

			mr := memory(t, sender)
			n := copy(mr.Bytes(), "to all members")
			require.NoError(t, sender.SendImm(ctx, 9, mr.Sub(0, n)))
			for i, r := range posted {
				n, err := r.Wait(ctx)
				require.NoError(t, err)
				require.Equal(t, "to all members", string(buffers[i].Bytes()[:n]))
				imm, ok := r.Imm()
				require.True(t, ok)
				require.EqualValues(t, 9, imm)
				from, err := r.Sender()
				require.NoError(t, err)
				require.Equal(t, sender.QP().Num(), from.QPNum)
				require.Equal(t, with.ip, from.Path.DGID.Addr())
				// The answer goes to the sender alone.
				require.NoError(t, members[i].SendImmTo(ctx, from, uint32(i)))
				_, err = unheard.Wait(ctx)
				require.NoError(t, err)
				imm, _ = unheard.Imm()
				require.EqualValues(t, i, imm, "and nothing from the group before")
				unheard, err = sender.PostRecv(memory(t, sender).All())
				require.NoError(t, err)
			}

			// A member receives its own datagrams.
			own, err := first.PostRecv(buffers[0].Sub(0, 2048))
			require.NoError(t, err)
			other, err := second.PostRecv(buffers[1].All())
			require.NoError(t, err)
			require.NoError(t, first.Send(ctx, buffers[0].Sub(2048, 7)))
			for _, r := range []*rdmacm.Receive{own, other} {
				n, err = r.Wait(ctx)
				require.NoError(t, err)
				require.Equal(t, 7, n)
				from, err := r.Sender()
				require.NoError(t, err)
				require.Equal(t, first.QP().Num(), from.QPNum)
			}
			require.ErrorIs(t, first.Send(ctx, buffers[0].Sub(0, 4096), buffers[0].Sub(0, 1)), syscall.EMSGSIZE)

			// The other members go on after one has left.
			require.NoError(t, second.Close())
			last, err := first.PostRecv(buffers[0].All())
			require.NoError(t, err)
			require.NoError(t, sender.Send(ctx, mr.Sub(0, 5)))
			n, err = last.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, 5, n)
			require.ErrorIs(t, second.Send(ctx), os.ErrClosed)
		})
	}
}

// isMember reports whether the network interface is in one of the test's
// groups.
func isMember(t testing.TB, group netip.Addr) bool {
	t.Helper()
	if testdevice.Soft() {
		sockets, err := os.ReadFile("/proc/net/unix")
		require.NoError(t, err)
		network := fnv.New64a()
		network.Write([]byte(os.Getenv("VERBENA_NETWORK"))) // of package ownnetwork
		return strings.Contains(string(sockets), fmt.Sprintf("@verbena-softroce-%016x/name/group/%v/", network.Sum64(), group))
	}
	file, text := "/proc/net/igmp", "424556EF" // on a little-endian host
	if group.Is6() {
		file, text = "/proc/net/igmp6", "ff1e0000000000000000000000005642"
	}
	groups, err := os.ReadFile(file)
	require.NoError(t, err)
	return strings.Contains(string(groups), text)
}

// The network interface is a member as long as a local end listens.
func TestGroupMembership(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	for name, with := range groupsOf(d.IPv4, d.IPv6) {
		t.Run(name, func(t *testing.T) {
			require.False(t, isMember(t, with.group))
			sender := joinOn(t, with.ip, with.group, rdmacm.GroupConfig{SendOnly: true})
			require.False(t, isMember(t, with.group))
			first := joinOn(t, with.ip, with.group, rdmacm.GroupConfig{})
			second := joinOn(t, with.ip, with.group, rdmacm.GroupConfig{})
			require.NoError(t, first.Close())
			require.True(t, isMember(t, with.group))
			require.NoError(t, sender.Close())
			require.True(t, isMember(t, with.group), "a sender that leaves does not take the group along")
			require.NoError(t, second.Close())
			require.False(t, isMember(t, with.group))
		})
	}
}

// Without a local address the routes choose the interface, as for sockets.
func TestGroupByRoute(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	zoned := netip.MustParseAddr("ff02::5642%" + d.NetDev)
	c, err := rdmacm.JoinGroup(bounded(t), zoned, nil)
	require.NoError(t, err)
	require.True(t, c.LocalAddr().Addr().IsLinkLocalUnicast())
	require.NoError(t, c.Close())
	needGuest(t) // the rest is about its routes
	_, err = rdmacm.JoinGroup(bounded(t), groupIPv4, nil)
	require.ErrorIs(t, err, syscall.ENETUNREACH)
	require.ErrorContains(t, err, "join 239.86.69.66: no route to the group; set GroupConfig.LocalAddr: ")
	guest.Run(t, "ip", "route", "add", "239.0.0.0/8", "dev", d.NetDev)
	defer guest.Run(t, "ip", "route", "del", "239.0.0.0/8", "dev", d.NetDev)
	c, err = rdmacm.JoinGroup(bounded(t), groupIPv4, nil)
	require.NoError(t, err)
	require.Equal(t, d.IPv4, c.LocalAddr().Addr())
	require.NoError(t, c.Close())
}

func TestGroupMistakes(t *testing.T) {
	d := needDevice(t)
	setupErr := errors.New("no memory left")
	for name, tt := range map[string]struct {
		group  netip.Addr
		config rdmacm.GroupConfig
		want   error
		text   string
	}{
		"no group":          {d.IPv4, rdmacm.GroupConfig{}, syscall.EINVAL, "join " + d.IPv4.String() + ": rdma_join_multicast (" + d.IPv4.String() + "): the address is not"},
		"invalid group":     {netip.Addr{}, rdmacm.GroupConfig{}, syscall.EINVAL, "invalid IP"},
		"other family":      {groupIPv4, rdmacm.GroupConfig{LocalAddr: d.IPv6.String()}, syscall.EAFNOSUPPORT, "not of the same address family"},
		"not ours":          {groupIPv4, rdmacm.GroupConfig{LocalAddr: "192.0.2.99"}, syscall.EADDRNOTAVAIL, "rdma_bind_addr (192.0.2.99:0)"},
		"no such interface": {netip.MustParseAddr("ff02::1%nowhere"), rdmacm.GroupConfig{}, nil, "nowhere"},
		"no loopback":       {groupIPv4, rdmacm.GroupConfig{LocalAddr: d.IPv4.String(), NoLoopback: true}, errors.ErrUnsupported, "rdma_create_qp"},
		"negative queue":    {groupIPv4, rdmacm.GroupConfig{LocalAddr: d.IPv4.String(), Config: rdmacm.DatagramConfig{RecvQueue: -1}}, syscall.EINVAL, "GroupConfig.Config.RecvQueue is -1, not from 0"},
		"Setup": {groupIPv6, rdmacm.GroupConfig{LocalAddr: d.IPv6.String(), Config: rdmacm.DatagramConfig{Setup: func(*rdmacm.DatagramConn) error {
			return setupErr
		}}}, setupErr, "set up the queue pair"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "Setup" {
				d.Have(t, testdevice.Datagrams, testdevice.Groups)
			}
			_, err := rdmacm.JoinGroup(bounded(t), tt.group, &tt.config)
			require.ErrorContains(t, err, tt.text)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
		})
	}
}

func TestCancelJoinAtEachStage(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	for name, with := range groupsOf(d.IPv4, d.IPv6) {
		t.Run(name, func(t *testing.T) {
			canceled := 0
			for n := 1; ; n++ {
				ctx := newCountdown(t, n)
				c, err := rdmacm.JoinGroup(ctx, with.group, &rdmacm.GroupConfig{LocalAddr: with.ip.String()})
				if err == nil {
					require.NoError(t, c.Close())
				} else {
					require.ErrorIs(t, err, context.Canceled)
					canceled++
				}
				require.False(t, isMember(t, with.group))
				if !ctx.ended() {
					break
				}
			}
			t.Logf("canceled %d times", canceled)
			require.GreaterOrEqual(t, canceled, 1)
		})
	}
}

// Soft-RoCE never loses a group. InfiniBand's subnet administrator may.
func TestGroupLost(t *testing.T) {
	d := needDevice(t)
	d.Have(t, testdevice.Datagrams, testdevice.Groups)
	c := joinOn(t, d.IPv4, groupIPv4, rdmacm.GroupConfig{})
	pending, err := c.PostRecv()
	require.NoError(t, err)
	rdmacm.InjectDatagram(c, &rdmacm.Event{Type: rdmacm.EventMulticastError, Status: -int(syscall.ENETRESET)})
	awaitEnd(t, c)
	var event *rdmacm.EventError
	require.ErrorAs(t, c.Err(), &event)
	require.Equal(t, rdmacm.EventMulticastError, event.Type)
	_, err = pending.Wait(bounded(t))
	require.ErrorIs(t, err, syscall.ENETRESET)
	require.ErrorIs(t, c.Send(bounded(t)), syscall.ENETRESET)
	require.True(t, isMember(t, groupIPv4), "until Close")
	require.NoError(t, c.Close())
	require.False(t, isMember(t, groupIPv4))
}
