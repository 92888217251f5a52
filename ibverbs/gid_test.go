// SPDX-License-Identifier: Apache-2.0

package ibverbs_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/link"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

func TestQueryGIDTable(t *testing.T) {
	r := open(t)
	port := must(r.c.QueryPort(r.device.Port))(t)
	entries := must(r.c.QueryPortGIDs(r.device.Port))(t)
	byIndex := map[int]ibverbs.GIDEntry{}
	for _, e := range entries {
		require.Equal(t, r.device.Port, e.Port)
		byIndex[e.Index] = e
		t.Log(e)
	}
	require.Len(t, byIndex, len(entries), "no index twice")
	for i := range port.GIDTableLen {
		gid := must(r.c.QueryGID(r.device.Port, i))(t)
		single, err := r.c.QueryGIDEntry(r.device.Port, i)
		if gid.IsZero() {
			require.ErrorIs(t, err, ibverbs.ErrNoGID)
			require.NotContains(t, byIndex, i)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, byIndex[i], single)
		require.Equal(t, gid, single.GID)
		if port.LinkLayer != link.Ethernet {
			continue
		}
		if !testdevice.Soft() {
			attr := fmt.Sprintf("ports/%d/gid_attrs/", r.device.Port)
			require.Contains(t, sysfs(t, r.device, fmt.Sprintf("%stypes/%d", attr, i)), single.Type.String())
			require.Equal(t, sysfs(t, r.device, fmt.Sprintf("%sndevs/%d", attr, i)), single.NetDev)
		}
		nic := must(net.InterfaceByName(single.NetDev))(t)
		require.Equal(t, nic.Index, single.NetDevIndex)
	}
	_, err := r.c.QueryPortGIDs(255)
	require.ErrorIs(t, err, syscall.EINVAL, "a port that is not there")
	_, err = r.c.QueryGIDEntry(r.device.Port, 1<<20)
	require.Error(t, err)
	require.NotErrorIs(t, err, ibverbs.ErrNoGID)
	t.Log(err)
	_, err = r.c.QueryGIDEntry(200, 0)
	require.Error(t, err)
	t.Log(err)
}

// What the kernel shows in /sys is the same table.
func TestSysfsFallback(t *testing.T) {
	testdevice.Needs(t, testdevice.Kernel)
	r := open(t)
	require.Equal(t, must(r.c.QueryGIDTable())(t), must(r.c.SysfsGIDTable())(t))
	e := must(r.c.QueryGIDEntry(r.device.Port, r.device.GIDIndex))(t)
	require.Equal(t, e, must(r.c.SysfsGIDEntry(r.device.Port, r.device.GIDIndex))(t))
}

func TestGIDsAgainstDevinfo(t *testing.T) {
	testdevice.Needs(t, testdevice.Kernel)
	r := open(t)
	info := devinfo(t, r.device)
	if info == nil {
		t.Log("ibv_devinfo is not installed: its values were not compared")
		return
	}
	var said []string
	for name, value := range info {
		if strings.HasPrefix(name, "GID[") {
			said = append(said, value)
		}
	}
	entries := must(r.c.QueryPortGIDs(r.device.Port))(t)
	require.Len(t, said, len(entries))
	for _, e := range entries {
		value := info[fmt.Sprintf("GID[%3d]", e.Index)]
		text, kind, _ := strings.Cut(value, ", ")
		require.Equal(t, e.GID, must(ibverbs.ParseGID(text))(t))
		if kind != "" {
			require.Equal(t, kind, e.Type.String())
		}
	}
}

func TestBestGIDOnDevice(t *testing.T) {
	r := open(t)
	best := must(r.c.BestGID(r.device.Port, ibverbs.GIDConfig{}))(t)
	if r.device.IPv4.IsValid() {
		require.Equal(t, ibverbs.GIDTypeRoCEv2, best.Type)
		require.False(t, best.GID.Addr().IsLinkLocalUnicast())
		for _, addr := range []netip.Addr{r.device.IPv4, r.device.IPv6} {
			if !addr.IsValid() {
				continue
			}
			e := must(r.c.FindGID(addr))(t)
			require.Equal(t, addr, e.GID.Addr())
			require.Equal(t, ibverbs.GIDTypeRoCEv2, e.Type)
			require.Equal(t, e, must(r.c.BestGID(r.device.Port, ibverbs.GIDConfig{Addr: addr, NetDev: r.device.NetDev}))(t))
		}
	}
	_, err := r.c.BestGID(r.device.Port, ibverbs.GIDConfig{NetDev: "no_such0"})
	require.ErrorIs(t, err, ibverbs.ErrNoGID)
	require.ErrorContains(t, err, best.String())
	_, err = r.c.FindGID(netip.MustParseAddr("203.0.113.77"))
	require.ErrorIs(t, err, ibverbs.ErrNoGID)
	require.ErrorContains(t, err, "address 203.0.113.77")
	_, err = r.c.FindGID(netip.Addr{})
	require.ErrorIs(t, err, ibverbs.ErrNoGID)
}

func TestOpenOtherwise(t *testing.T) {
	d := testdevice.Require(t)
	testdevice.NoLeaks(t)
	guid := must(ibverbs.QueryDeviceInfo(d.Name))(t).Device.GUID
	if !testdevice.Soft() {
		require.Equal(t, sysfs(t, d, "node_guid"), guid.String())
	}
	c := must(ibverbs.OpenGUID(guid))(t)
	require.Equal(t, guid, must(c.QueryDevice())(t).NodeGUID)
	require.Len(t, ibverbs.OpenObjects(), 1)
	require.NoError(t, c.Close())
	_, err := ibverbs.OpenGUID(^guid)
	require.ErrorIs(t, err, ibverbs.ErrNoDevice)
	require.ErrorContains(t, err, (^guid).String())

	if d.NetDev != "" {
		c, port, err := ibverbs.OpenNetDev(d.NetDev)
		require.NoError(t, err)
		require.Equal(t, d.Name, c.Name())
		require.Equal(t, d.Port, port)
		require.Equal(t, d.NetDev, must(c.NetDev(port))(t))
		require.NoError(t, c.Close())
	}
	others := []string{"no_such0"}
	if !testdevice.Soft() { // whose port has the addresses of all interfaces
		others = append(others, "lo")
	}
	for _, other := range others {
		_, _, err := ibverbs.OpenNetDev(other)
		require.ErrorIs(t, err, ibverbs.ErrNoDevice)
		require.ErrorContains(t, err, d.Name+" (")
		require.ErrorContains(t, err, d.NetDev)
		t.Log(err)
	}

	if d.IPv4.IsValid() {
		c, e, err := ibverbs.OpenAddr(d.IPv4)
		require.NoError(t, err)
		require.Equal(t, d.Name, c.Name())
		require.Equal(t, d.GIDIndex, e.Index)
		require.NoError(t, c.Close())
	}
	_, _, err = ibverbs.OpenAddr(netip.MustParseAddr("203.0.113.77"))
	require.ErrorIs(t, err, ibverbs.ErrNoDevice)
	t.Log(err)
}

func TestPKeys(t *testing.T) {
	r := open(t)
	table := must(r.c.QueryPKeyTable(r.device.Port))(t)
	if !testdevice.Soft() {
		dir := filepath.Join("/sys/class/infiniband", r.device.Name, "ports", fmt.Sprint(r.device.Port), "pkeys")
		require.Len(t, must(os.ReadDir(dir))(t), len(table))
	}
	for i, pkey := range table {
		if !testdevice.Soft() {
			require.Equal(t, sysfs(t, r.device, fmt.Sprintf("ports/%d/pkeys/%d", r.device.Port, i)), pkey.String())
		}
		if pkey != 0 {
			require.LessOrEqual(t, must(r.c.PKeyIndex(r.device.Port, pkey))(t), i)
		}
	}
	require.Contains(t, table, ibverbs.PKeyDefault)
	_, err := r.c.PKeyIndex(r.device.Port, 0x1234)
	require.ErrorIs(t, err, ibverbs.ErrNoPKey)
	t.Log(err)
	_, err = r.c.QueryPKey(r.device.Port, len(table))
	require.Error(t, err)
	t.Log(err)
}
