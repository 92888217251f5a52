// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// idWithChannel returns an id in a port space with a channel of its own. The
// test closes both at the end.
func idWithChannel(t *testing.T, ps rdmacm.PortSpace) (*rdmacm.EventChannel, *rdmacm.ID) {
	t.Helper()
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ch.Close()) })
	id, err := ch.NewID(ps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, id.Close()) })
	return ch, id
}

// Soft-RoCE finds a device by its GID. It has no subnet administrator to ask
// for a route, and takes no GID to listen on.
func TestIBAddresses(t *testing.T) {
	d := testdevice.Needs(t, testdevice.IBAddrs)
	here := rdmacm.IBAddr{GID: d.GID, ServiceID: serviceTCP | 7471}
	_, ln := idWithChannel(t, rdmacm.PortSpaceIB)
	err := ln.BindIB(here)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_bind_addr ("+here.String()+")")
	require.NoError(t, ln.BindIB(rdmacm.IBAddr{ServiceID: here.ServiceID}), "any GID")
	require.Equal(t, here.ServiceID, ln.LocalIBAddr().ServiceID)
	require.False(t, ln.LocalAddr().IsValid(), "is not of IP")
	require.NoError(t, ln.Listen(1))

	ch, client := idWithChannel(t, rdmacm.PortSpaceIB)
	require.NoError(t, client.ResolveIB(nil, here, cmtest.Patience))
	resolved(t, ch)
	require.Equal(t, d.GID, client.LocalIBAddr().GID)
	require.Equal(t, here.GID, client.RemoteIBAddr().GID)
	require.Equal(t, here.ServiceID, client.RemoteIBAddr().ServiceID)
	require.False(t, client.RemoteAddr().IsValid(), "is not of IP")
	require.Equal(t, d.Port, client.PortNum())
	err = client.ResolveRoute(time.Second)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_resolve_route (")

	ch, other := idWithChannel(t, rdmacm.PortSpaceIB)
	require.ErrorIs(t, other.ResolveIB(nil, rdmacm.IBAddr{GID: ibverbs.GID{9}, ServiceID: here.ServiceID}, time.Second), syscall.ENODEV)
	src := rdmacm.IBAddr{GID: d.GID}
	require.NoError(t, other.ResolveIB(&src, here, cmtest.Patience))
	resolved(t, ch)
	err = other.ResolveIB(&src, here, time.Second)
	require.ErrorIs(t, err, syscall.EINVAL, "again")
	require.ErrorContains(t, err, src.String()+" to "+here.String())
}

// resolved waits until the address of the channel's id is resolved.
func resolved(t *testing.T, ch *rdmacm.EventChannel) {
	t.Helper()
	ev, err := ch.Next(cmtest.Bounded(t))
	require.NoError(t, err)
	require.Equal(t, rdmacm.EventAddrResolved, ev.Type)
}

// pathTo returns a path from a GID to itself.
func pathTo(gid ibverbs.GID) rdmacm.IBPath {
	return rdmacm.IBPath{
		SGID: gid, DGID: gid, HopLimit: 64, Reversible: true, NumPaths: 1,
		MTU: ibverbs.MTU1024, Rate: libibverbs.IBV_RATE_10_GBPS, PacketLifetime: time.Second,
	}
}

func TestSetPaths(t *testing.T) {
	d := cmtest.NeedDevice(t)
	ln := cmtest.PassiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	ch, id := idWithChannel(t, rdmacm.PortSpaceTCP)
	require.NoError(t, id.ResolveAddr(ln.ID().RemoteAddr(), ln.ID().LocalAddr(), cmtest.Patience))
	resolved(t, ch)
	other := pathTo(d.GID)
	other.Flags = libibverbs.IBV_PATH_FLAG_ALTERNATE
	require.ErrorIs(t, id.SetIBPaths(other), syscall.EINVAL, "none for a connection")
	tooLong := pathTo(d.GID)
	tooLong.FlowLabel = 1 << 20
	require.ErrorContains(t, id.SetIBPaths(tooLong), "IBPath.FlowLabel is 1048576, not from 0 to 1048575")
	require.NoError(t, id.SetIBPaths(other, pathTo(d.GID)))
	ev, err := ch.Next(cmtest.Bounded(t))
	require.NoError(t, err)
	require.Equal(t, rdmacm.EventRouteResolved, ev.Type)
}

// Values that are nil or that rdmacm did not make get an error, with or without
// a device.
func TestIBOfNilAndZero(t *testing.T) {
	group := rdmacm.IBAddr{GID: ibverbs.GID{0xff}}
	for name, id := range map[string]*rdmacm.ID{"nil": nil, "zero": {}} {
		for call, err := range map[string]error{
			"Bind": id.BindIB(rdmacm.IBAddr{}), "Resolve": id.ResolveIB(nil, rdmacm.IBAddr{}, time.Second),
			"SetPaths":       id.SetIBPaths(rdmacm.IBPath{}),
			"JoinMulticast":  id.JoinMulticastIB(group, rdmacm.JoinFull, nil),
			"LeaveMulticast": id.LeaveMulticastIB(group),
		} {
			require.ErrorIs(t, err, os.ErrInvalid, "%s of a %s id", call, name)
		}
		require.Zero(t, id.LocalIBAddr())
		require.Zero(t, id.RemoteIBAddr())
		require.ErrorIs(t, id.SetIBPaths(), syscall.EINVAL, "no path")
	}
	var none context.Context
	_, err := rdmacm.JoinGroupIB(none, group, nil)
	require.ErrorContains(t, err, "ctx is nil")
}
