// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// inNamespace runs the program container in a network namespace.
func inNamespace(t *testing.T, namespace string, args ...string) *process.Process {
	t.Helper()
	self := process.Command(t, "container", args...)
	cmd := exec.Command("ip", append([]string{"netns", "exec", namespace}, self.Args...)...)
	cmd.Env = self.Env
	return process.Run(t, cmd)
}

// container connects two queue pairs of a device by the address that QP.Addr
// chooses, and prints the address. With an address as argument, it first waits
// until the device has a GID of it.
func container(args []string) error {
	device, err := ibverbs.Open(args[0])
	if err != nil {
		return err
	}
	defer device.Close()
	if len(args) > 1 {
		addr := netip.MustParseAddr(args[1])
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if _, err = device.FindGID(addr); err == nil {
				break
			}
			if time.Now().After(end) {
				return err
			}
		}
	}
	pd, err := device.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 4})
	if err != nil {
		return err
	}
	defer cq.Close()
	var qps [2]*ibverbs.QP
	var addrs [2]ibverbs.QPAddr
	for i := range qps {
		if qps[i], err = pd.CreateQP(ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1}); err != nil {
			return err
		}
		defer qps[i].Close()
		if addrs[i], err = qps[i].Addr(ibverbs.QPAddrConfig{}); err != nil {
			return err
		}
	}
	entry, err := device.QueryGIDEntry(addrs[0].Port, addrs[0].GIDIndex)
	if err != nil {
		return err
	}
	if err := errors.Join(qps[0].ConnectTo(addrs[0], addrs[1], ibverbs.ConnectConfig{}), qps[1].ConnectTo(addrs[1], addrs[0], ibverbs.ConnectConfig{})); err != nil {
		return err
	}
	fmt.Println(entry.Addr(), entry.NetDev)
	return nil
}

// A container that shares the device with the host gets the address of its own
// interface, or an error that says that the interface has none.
func TestGIDInContainer(t *testing.T) {
	needGuest(t)
	d := needDevice(t)
	for _, line := range []string{
		"ip netns add pod", "ip -n pod link set lo up", "ip link add mv1 link " + d.NetDev + " type macvlan mode bridge",
	} {
		command(t, line)
	}
	// Deleting the namespace deletes its interface.
	t.Cleanup(func() { command(t, "ip netns delete pod") })
	for _, line := range []string{"ip link set mv1 netns pod", "ip -n pod link set mv1 up"} {
		command(t, line)
	}
	// The interface has only its link-local address yet. The loopback
	// interface's address is not the device's.
	command(t, "ip -n pod -6 addr flush dev mv1")
	p := inNamespace(t, "pod", d.Name)
	if p.Wait() == 0 { // the link's own GID stays, also without the address
		require.Contains(t, p.Stdout(), "fe80:")
		require.Contains(t, p.Stdout(), "mv1")
	} else {
		require.Contains(t, p.Stderr(), "in other network namespaces")
	}
	command(t, "ip -n pod addr add 192.0.2.211/24 dev mv1")
	p = inNamespace(t, "pod", d.Name, "192.0.2.211")
	require.Zero(t, p.Wait())
	require.Equal(t, "192.0.2.211 mv1\n", p.Stdout())

	command(t, "ip -n pod link delete mv1")
	p = inNamespace(t, "pod", d.Name)
	require.NotZero(t, p.Wait())
	require.Contains(t, p.Stderr(), ibverbs.ErrNoGID.Error())
	require.Contains(t, p.Stderr(), "in other network namespaces")

	device, err := ibverbs.Open(d.Name)
	require.NoError(t, err)
	defer device.Close()
	gid, err := device.BestGID(d.Port, ibverbs.GIDConfig{})
	require.NoError(t, err)
	require.Equal(t, d.NetDev, gid.NetDev, "the host keeps its own")
}

// linkLocal returns the link-local address of an interface, if any.
func linkLocal(t *testing.T, name string) (addr netip.Addr) {
	t.Helper()
	ifi, err := net.InterfaceByName(name)
	require.NoError(t, err)
	addrs, err := ifi.Addrs()
	require.NoError(t, err)
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			addr = prefix.Addr()
		}
	}
	return addr
}

// Link-local addresses have package net's zones at both ends, so that the
// accepting end can connect to its peer.
func TestZonesAsPackageNet(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	ip := linkLocal(t, d.NetDev)
	if !ip.IsValid() {
		require.Empty(t, os.Getenv("RDMA_VM"), "the guest's interface has a link-local address")
		t.Skipf("%s has no link-local address", d.NetDev)
	}
	at := ip.WithZone(d.NetDev)
	for name, where := range map[string]string{"at the address": netip.AddrPortFrom(at, 0).String(), "at every address": ":0"} {
		t.Run(name, func(t *testing.T) {
			ln, err := rdmacm.Listen(ctx, where, nil)
			require.NoError(t, err)
			defer ln.Close()
			if !strings.HasPrefix(where, ":") {
				require.Equal(t, d.NetDev, ln.Addr().Addr().Zone())
			}
			result := acceptOne(ctx, ln, nil)
			client, err := rdmacm.Dial(ctx, netip.AddrPortFrom(at, ln.Addr().Port()).String(), inPool(nil))
			require.NoError(t, err)
			accepted := <-result
			require.NoError(t, accepted.err)
			server := accepted.conn
			for end, addr := range map[string]netip.AddrPort{
				"dialed, local": client.LocalAddr(), "dialed, remote": client.RemoteAddr(),
				"accepted, local": server.LocalAddr(), "accepted, remote": server.RemoteAddr(),
				"accepted, its ID": server.ID().RemoteAddr(),
			} {
				require.Equal(t, at, addr.Addr(), end)
			}
			back, err := rdmacm.Listen(ctx, netip.AddrPortFrom(client.LocalAddr().Addr(), 0).String(), nil)
			require.NoError(t, err)
			serving, cancel := context.WithCancel(ctx)
			served := inBackground(func() error { return back.Serve(serving, obey) })
			again, err := rdmacm.Dial(ctx, netip.AddrPortFrom(server.RemoteAddr().Addr(), back.Addr().Port()).String(), inPool(nil))
			require.NoError(t, err, "to the peer's address as the accepting end has it")
			require.NoError(t, again.Close())
			cancel()
			require.NoError(t, <-served)
			require.NoError(t, back.Close())
			require.NoError(t, client.Close())
			require.NoError(t, server.Close())
		})
	}
}
