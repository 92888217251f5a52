// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

func TestGetAddrInfo(t *testing.T) {
	d := needDevice(t)
	src := netip.AddrPortFrom(d.IPv4, 0)
	numeric := rdmacm.AddrNumericHost
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, tt := range []struct {
		name, host, service string
		hints               *rdmacm.AddrInfo
		want                rdmacm.AddrInfo // but for Connect and Paths, and names
	}{
		{"numeric", d.IPv4.String(), "7471", &rdmacm.AddrInfo{Flags: numeric, PortSpace: rdmacm.PortSpaceTCP}, rdmacm.AddrInfo{
			Family: rdmacm.FamilyIPv4, QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP, Dst: netip.AddrPortFrom(d.IPv4, 7471),
		}},
		{"IPv6", d.IPv6.String(), "7471", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP}, rdmacm.AddrInfo{
			Family: rdmacm.FamilyIPv6, QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP, Dst: netip.AddrPortFrom(d.IPv6, 7471),
		}},
		{"datagrams", d.IPv4.String(), "7471", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceUDP, QPType: ibverbs.QPTypeUD}, rdmacm.AddrInfo{
			Family: rdmacm.FamilyIPv4, QPType: ibverbs.QPTypeUD, PortSpace: rdmacm.PortSpaceUDP, Dst: netip.AddrPortFrom(d.IPv4, 7471),
		}},
		{"a name of /etc/hosts", "localhost", "7471", &rdmacm.AddrInfo{Flags: rdmacm.AddrFamily, Family: rdmacm.FamilyIPv4, PortSpace: rdmacm.PortSpaceTCP}, rdmacm.AddrInfo{
			Family: rdmacm.FamilyIPv4, QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP, Dst: netip.AddrPortFrom(loopback, 7471),
		}},
		{"a service's name", d.IPv4.String(), "ssh", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP}, rdmacm.AddrInfo{
			Family: rdmacm.FamilyIPv4, QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP, Dst: netip.AddrPortFrom(d.IPv4, 22),
		}},
		{"passive", "", "7471", &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive | rdmacm.AddrFamily, Family: rdmacm.FamilyIPv4, PortSpace: rdmacm.PortSpaceTCP}, rdmacm.AddrInfo{
			Flags: rdmacm.AddrPassive, Family: rdmacm.FamilyIPv4, QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP,
			Src: netip.AddrPortFrom(netip.IPv4Unspecified(), 7471),
		}},
		{"a source", d.IPv4.String(), "7471", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, Src: src}, rdmacm.AddrInfo{
			Family: rdmacm.FamilyIPv4, QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP, Src: src, Dst: netip.AddrPortFrom(d.IPv4, 7471),
		}},
		{"no more than hints", "", "", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP, QPType: ibverbs.QPTypeRC, Src: src}, rdmacm.AddrInfo{
			QPType: ibverbs.QPTypeRC, PortSpace: rdmacm.PortSpaceTCP, Src: src,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			infos, err := rdmacm.GetAddrInfo(bounded(t), tt.host, tt.service, tt.hints)
			require.NoError(t, err)
			require.NotEmpty(t, infos)
			got := infos[0]
			require.Empty(t, got.Paths, "no daemon caches paths here")
			require.Empty(t, got.Connect)
			got.Paths, got.Connect, got.SrcName, got.DstName = nil, nil, "", ""
			require.Equal(t, tt.want, got)
		})
	}
	infos, err := rdmacm.GetAddrInfo(bounded(t), d.IPv4.String(), "7471", nil)
	require.NoError(t, err)
	require.Equal(t, netip.AddrPortFrom(d.IPv4, 7471), infos[0].Dst, "without hints")
}

func TestGetAddrInfoFails(t *testing.T) {
	d := needDevice(t)
	_, err := rdmacm.GetAddrInfo(bounded(t), "", "", nil)
	require.ErrorIs(t, err, syscall.EINVAL, "nothing to look up")
	for _, tt := range []struct {
		name, host, service string
		hints               *rdmacm.AddrInfo
		code                int
	}{
		{"no name", "no.such.host.invalid.", "7", &rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost, PortSpace: rdmacm.PortSpaceTCP}, -2},
		{"no service", d.IPv4.String(), "no such service", &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP}, -8},
		{"no family", d.IPv4.String(), "7", &rdmacm.AddrInfo{Flags: rdmacm.AddrFamily, Family: 77, PortSpace: rdmacm.PortSpaceTCP}, -6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rdmacm.GetAddrInfo(bounded(t), tt.host, tt.service, tt.hints)
			var failed *rdmacm.AddrInfoError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, tt.code, failed.Code)
			require.ErrorContains(t, err, "rdma_getaddrinfo")
			t.Log(err)
		})
	}
	_, err = rdmacm.GetAddrInfo(canceled(t), d.IPv4.String(), "7", nil)
	require.ErrorIs(t, err, context.Canceled)
	var none context.Context
	_, err = rdmacm.GetAddrInfo(none, d.IPv4.String(), "7", nil)
	require.ErrorContains(t, err, "rdma_getaddrinfo: ctx is nil")
	_, err = rdmacm.GetAddrInfo(bounded(t), "localhost\x00b", "7", nil)
	require.EqualError(t, err, `host "localhost\x00b", service "7": rdma_getaddrinfo: node contains a zero byte`)
	require.ErrorIs(t, err, syscall.EINVAL)
	_, err = rdmacm.GetAddrInfo(bounded(t), "localhost", "7\x00", &rdmacm.AddrInfo{})
	require.ErrorContains(t, err, "rdma_getaddrinfo: service contains a zero byte")
	asGID := &rdmacm.AddrInfo{Flags: rdmacm.AddrFamily | rdmacm.AddrNumericHost, Family: rdmacm.FamilyIB}
	for _, host := range []string{d.IPv4.String(), "localhost", ""} {
		_, err = rdmacm.GetAddrInfo(bounded(t), host, "7", asGID)
		require.ErrorContains(t, err, fmt.Sprintf("host %q is not a GID", host))
	}
}

func TestLookUp(t *testing.T) {
	d := needDevice(t)
	hints := &rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost, PortSpace: rdmacm.PortSpaceTCP}
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		host, from, to := ip.String(), netip.AddrPortFrom(ip, 0), netip.AddrPortFrom(ip, 7471)
		for _, tt := range []struct {
			name, local, remote string
			flags               rdmacm.AddrInfoFlags
			src, dst            netip.AddrPort
		}{
			{"listen", host, "", rdmacm.AddrPassive, to, netip.AddrPort{}},
			{"connect", "", host, 0, netip.AddrPort{}, to},
			{"connect from an address", host, host, 0, from, to},
		} {
			t.Run(host+" "+tt.name, func(t *testing.T) {
				info, err := rdmacm.LookUp(bounded(t), tt.local, tt.remote, "7471", hints)
				require.NoError(t, err)
				require.Equal(t, tt.flags, info.Flags&rdmacm.AddrPassive)
				require.Equal(t, [2]netip.AddrPort{tt.src, tt.dst}, [2]netip.AddrPort{info.Src, info.Dst})
				require.Equal(t, rdmacm.PortSpaceTCP, info.PortSpace)
			})
		}
	}
	require.Equal(t, &rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost, PortSpace: rdmacm.PortSpaceTCP}, hints, "left alone")
	info, err := rdmacm.LookUp(bounded(t), "", d.IPv4.String(), "7471", nil)
	require.NoError(t, err)
	require.Equal(t, netip.AddrPortFrom(d.IPv4, 7471), info.Dst, "without hints")
	for _, hosts := range [][2]string{{"absent", ""}, {"", "absent"}, {"absent", d.IPv4.String()}, {d.IPv4.String(), "absent"}} {
		_, err := rdmacm.LookUp(bounded(t), hosts[0], hosts[1], "7471", hints)
		require.ErrorContains(t, err, `host "absent"`, hosts)
	}
}
