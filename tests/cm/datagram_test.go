// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakelib"
	"github.com/verbena-go/verbena/rdmacm"
)

// called returns the last call of a function.
// Soft-RoCE has neither port spaces of IPoIB nor addresses of InfiniBand for
// datagrams.
func TestDatagramInfos(t *testing.T) {
	c := open(t)
	ip := netip.MustParseAddrPort(address)
	gid := rdmacm.IBAddr{GID: ibverbs.GID{0xfe, 0x80, 15: 1}, ServiceID: 0x0111_1c06}
	for name, tt := range map[string]struct {
		info           rdmacm.AddrInfo
		ps             rdmacm.PortSpace
		family         uint16
		route, without string // how the path becomes known
		data           int
	}{
		"defaults": {rdmacm.AddrInfo{Dst: ip, Src: ip}, rdmacm.PortSpaceUDP, 2, "rdma_resolve_route", "rdma_set_option", 5},
		"IPoIB":    {rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceIPoIB, Dst: ip, Src: ip}, rdmacm.PortSpaceIPoIB, 2, "rdma_resolve_route", "rdma_set_option", 5},
		"InfiniBand": {
			rdmacm.AddrInfo{
				Family: rdmacm.FamilyIB, PortSpace: rdmacm.PortSpaceUDP, DstIB: gid, SrcIB: gid,
				Paths: make([]rdmacm.IBPath, 1), Connect: []byte("for the cache"),
			},
			rdmacm.PortSpaceUDP, libibverbs.AF_IB, "rdma_set_option", "rdma_resolve_route", 18,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.Forget()
			conn, err := new(rdmacm.Dialer).DialDatagramInfo(bounded(t), tt.info, &rdmacm.DatagramConfig{PrivateData: []byte("hello")})
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			require.EqualValues(t, tt.ps, c.Last("rdma_create_id").Arg(3))
			resolve := c.Last("rdma_resolve_addr")
			for _, arg := range []int{1, 2} {
				require.Equal(t, tt.family, fakelib.Struct[librdmacm.Sockaddr](resolve, arg).SaFamily)
			}
			require.Contains(t, c.Names(), tt.route)
			require.NotContains(t, c.Names(), tt.without)
			require.EqualValues(t, tt.data, fakelib.Struct[librdmacm.ConnParam](c.Last("rdma_connect"), 1).PrivateDataLen)

			c.Forget()
			ln, err := rdmacm.ListenDatagramInfo(bounded(t), tt.info, nil)
			require.NoError(t, err)
			req, err := ln.Accept(bounded(t))
			require.NoError(t, err)
			require.NoError(t, req.Reject(nil))
			require.NoError(t, ln.Close())
			require.EqualValues(t, tt.ps, c.Last("rdma_create_id").Arg(3))
			require.Equal(t, tt.family, fakelib.Struct[librdmacm.Sockaddr](c.Last("rdma_bind_addr"), 1).SaFamily)
		})
	}
}

func TestGroupsOfInfiniBand(t *testing.T) {
	c := open(t)
	group := rdmacm.IBAddr{GID: ibverbs.GID{0xff, 0x0e, 15: 7}}
	conn, err := rdmacm.JoinGroupIB(bounded(t), group, &rdmacm.GroupConfig{LocalAddr: "192.0.2.1", PortSpace: rdmacm.PortSpaceIPoIB})
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1", conn.LocalAddr().Addr().String())
	require.False(t, conn.RemoteAddr().IsValid())
	require.NoError(t, conn.Close())
	require.EqualValues(t, rdmacm.PortSpaceIPoIB, c.Last("rdma_create_id").Arg(3))
	require.EqualValues(t, libibverbs.AF_IB, fakelib.Struct[librdmacm.Sockaddr](c.Last("rdma_join_multicast"), 1).SaFamily)
	require.Contains(t, c.Names(), "rdma_leave_multicast")
}

// An accepted end has asked for nothing, so no event is an answer: what says
// that no more will come ends it.
func TestAcceptedDatagramsHearOfTheEnd(t *testing.T) {
	c := open(t)
	ln, err := rdmacm.ListenDatagram(bounded(t), address, nil)
	require.NoError(t, err)
	req, err := ln.Accept(bounded(t))
	require.NoError(t, err)
	c.Next("rdma_accept", fakelib.Returns(0, 0)) // for datagrams it has no event
	conn, err := req.Accept(bounded(t), nil)
	require.NoError(t, err)
	become(c, rdmacm.EventConnectError, -int(syscall.EIO))
	require.NoError(t, conn.ID().WriteUserEvent(0, 0))
	select {
	case <-conn.Done():
	case <-bounded(t).Done():
		require.Fail(t, "the end goes on")
	}
	require.ErrorIs(t, conn.Err(), syscall.EIO)
	require.NoError(t, conn.Close())
	require.NoError(t, ln.Close())
}
