package rdmacm_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// serviceTCP is the service of a port of PortSpaceTCP.
const serviceTCP = uint64(rdmacm.PortSpaceTCP) << 16

func TestIBAddrRoundTrip(t *testing.T) {
	for name, tt := range map[string]struct{ in, want rdmacm.IBAddr }{
		"defaults": {rdmacm.IBAddr{}, rdmacm.IBAddr{ServiceIDMask: ^uint64(0), PKey: ibverbs.PKeyDefault}},
		"all": {
			rdmacm.IBAddr{GID: ibverbs.GID{1, 15: 2}, ServiceID: 0x0106_1234, ServiceIDMask: 0xffff_0000, PKey: 0x8001, FlowInfo: 3, ScopeID: 4},
			rdmacm.IBAddr{GID: ibverbs.GID{1, 15: 2}, ServiceID: 0x0106_1234, ServiceIDMask: 0xffff_0000, PKey: 0x8001, FlowInfo: 3, ScopeID: 4},
		},
	} {
		require.Equal(t, tt.want, rdmacm.IBAddrRoundTrip(tt.in), name)
	}
	require.Equal(t, "0100:0000:0000:0000:0000:0000:0000:0002 service 0x1061234",
		rdmacm.IBAddr{GID: ibverbs.GID{1, 15: 2}, ServiceID: 0x1061234}.String())
}

// Soft-RoCE finds a device by its GID, but has no subnet administrator to ask
// for a route, and takes no GID to listen on.
func TestIBAddresses(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	here := rdmacm.IBAddr{GID: d.GID, ServiceID: serviceTCP | 7471}
	ln := newEndpoint(t, rdmacm.PortSpaceIB)
	err := ln.ID().BindIB(here)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_bind_addr ("+here.String()+")")
	require.NoError(t, ln.ID().BindIB(rdmacm.IBAddr{ServiceID: here.ServiceID}), "any GID")
	require.Equal(t, here.ServiceID, ln.ID().LocalIBAddr().ServiceID)
	require.False(t, ln.ID().LocalAddr().IsValid(), "is not of IP")
	require.NoError(t, ln.Listen(1))

	client := newEndpoint(t, rdmacm.PortSpaceIB)
	require.NoError(t, client.ResolveIB(ctx, nil, here))
	require.Equal(t, d.GID, client.ID().LocalIBAddr().GID)
	require.Equal(t, here.GID, client.ID().RemoteIBAddr().GID)
	require.Equal(t, here.ServiceID, client.ID().RemoteIBAddr().ServiceID)
	require.False(t, client.ID().RemoteAddr().IsValid(), "is not of IP")
	require.Equal(t, d.Port, client.ID().PortNum())
	_, err = client.CreateQP(nil, endpointQueues)
	require.NoError(t, err)
	err = client.ResolveRoute(ctx)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_resolve_route (")

	other := newEndpoint(t, rdmacm.PortSpaceIB)
	require.ErrorIs(t, other.ResolveIB(ctx, nil, rdmacm.IBAddr{GID: ibverbs.GID{9}, ServiceID: here.ServiceID}), syscall.ENODEV)
	src := rdmacm.IBAddr{GID: d.GID}
	require.NoError(t, other.ResolveIB(ctx, &src, here))
	err = other.ResolveIB(ctx, &src, here)
	require.ErrorIs(t, err, syscall.EINVAL, "again")
	require.ErrorContains(t, err, src.String()+" to "+here.String())
}

func TestGetAddrInfoIB(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	hints := &rdmacm.AddrInfo{
		Flags: rdmacm.AddrFamily | rdmacm.AddrNumericHost, Family: rdmacm.FamilyIB,
		PortSpace: rdmacm.PortSpaceTCP, QPType: ibverbs.QPTypeRC, SrcIB: rdmacm.IBAddr{GID: d.GID},
	}
	infos, err := rdmacm.GetAddrInfo(ctx, d.GID.String(), "7471", hints)
	require.NoError(t, err)
	got := infos[0]
	require.Equal(t, rdmacm.FamilyIB, got.Family)
	require.Equal(t, d.GID, got.DstIB.GID)
	require.Equal(t, serviceTCP|7471, got.DstIB.ServiceID)
	require.Equal(t, d.GID, got.SrcIB.GID)
	require.False(t, got.Dst.IsValid())

	// The port space of IP does not take such addresses; that of InfiniBand
	// gets as far as the route.
	got.PortSpace, got.SrcIB = rdmacm.PortSpaceIB, rdmacm.IBAddr{}
	_, err = rdmacm.CreateEndpoint(ctx, got, nil, &endpointQueues)
	require.ErrorIs(t, err, syscall.ENODEV)
	require.ErrorContains(t, err, "rdma_resolve_route (")
}

// A path that the caller knows takes the place of ResolveRoute.
func TestSetIBPaths(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ln := passiveEndpoint(t, rdmacm.PortSpaceTCP, d.IPv4)
	gid := libibverbs.Gid{}
	copy(gid.Raw()[:], d.GID[:])
	path := libibverbs.PathData{
		Flags: libibverbs.IBV_PATH_FLAG_GMP | libibverbs.IBV_PATH_FLAG_PRIMARY | libibverbs.IBV_PATH_FLAG_BIDIRECTIONAL,
		Path: libibverbs.PathRecord{
			Dgid: gid, Sgid: gid, FlowlabelHoplimit: libibverbs.NewBe32(64), ReversibleNumpath: libibverbs.IBV_PATH_RECORD_REVERSIBLE | 1,
			Pkey: libibverbs.NewBe16(uint16(ibverbs.PKeyDefault)), Mtu: 2<<6 | uint8(libibverbs.IBV_MTU_1024),
			Rate: 2<<6 | uint8(libibverbs.IBV_RATE_10_GBPS), Packetlifetime: 2<<6 | 18,
		},
	}
	info := rdmacm.AddrInfo{Dst: ln.ID().LocalAddr(), Paths: []libibverbs.PathData{path}}
	client, err := rdmacm.CreateEndpoint(ctx, info, nil, &endpointQueues)
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	connected := inBackground(func() error { _, err := client.Connect(ctx, rdmacm.ConnParam{}); return err })
	server := getRequest(t, ln)
	require.NoError(t, server.Accept(ctx, rdmacm.ConnParam{}))
	require.NoError(t, <-connected)
	attr, err := client.QP().Query()
	require.NoError(t, err)
	require.Equal(t, 1024, attr.PathMTU.Bytes())
}
