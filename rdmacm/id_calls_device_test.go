package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// bindTwice binds one id, then another, to the same address, and returns the
// second's error.
func bindTwice(t *testing.T, addr netip.Addr, before func(*rdmacm.ID)) error {
	t.Helper()
	ch := newChannel(t)
	first, second := newID(t, ch), newID(t, ch)
	before(first)
	before(second)
	require.NoError(t, first.BindAddr(netip.AddrPortFrom(addr, 0)))
	return second.BindAddr(first.LocalAddr())
}

func TestSetReuseAddr(t *testing.T) {
	d := needDevice(t)
	require.ErrorIs(t, bindTwice(t, d.IPv4, func(*rdmacm.ID) {}), syscall.EADDRINUSE)
	require.NoError(t, bindTwice(t, d.IPv4, func(id *rdmacm.ID) { require.NoError(t, id.SetReuseAddr(true)) }))
	require.ErrorIs(t, bindTwice(t, d.IPv4, func(id *rdmacm.ID) {
		require.NoError(t, id.SetReuseAddr(true))
		require.NoError(t, id.SetReuseAddr(false))
	}), syscall.EADDRINUSE)
}

func TestSetAFOnly(t *testing.T) {
	needDevice(t)
	for _, only := range []bool{false, true} {
		ch := newChannel(t)
		six, four := newID(t, ch), newID(t, ch)
		require.NoError(t, six.SetAFOnly(only))
		require.NoError(t, six.BindAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)))
		require.NoError(t, six.Listen(1))
		err := four.BindAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), six.LocalAddr().Port()))
		if err == nil {
			err = four.Listen(1)
		}
		if only {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		}
	}
}

// What is set arrives in the attributes of the queue pair.
func TestSetTOSAndAckTimeout(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	require.NoError(t, client.id.ResolveAddr(netip.AddrPort{}, ln.id.LocalAddr(), time.Second))
	next(t, client.ch, rdmacm.EventAddrResolved)
	require.NoError(t, client.id.SetTOS(0x68))
	require.NoError(t, client.id.SetAckTimeout(time.Second)) // 4.096 us * 2^18 is the next
	require.NoError(t, client.id.ResolveRoute(time.Second))
	next(t, client.ch, rdmacm.EventRouteResolved)
	require.NoError(t, client.id.Connect(plainRequest()))
	server := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	answer := rdmacm.ConnParam{QPNum: newQP()}
	require.NoError(t, server.Accept(answer))
	next(t, client.ch, rdmacm.EventConnectResponse)
	attr, _, err := client.id.InitQPAttr(ibverbs.QPStateRTR)
	require.NoError(t, err)
	require.EqualValues(t, 0x68, attr.AhAttr.Grh.TrafficClass)
	require.Equal(t, answer.QPNum, attr.DestQpNum)
	attr, _, err = client.id.InitQPAttr(ibverbs.QPStateRTS)
	require.NoError(t, err)
	require.EqualValues(t, 18, attr.Timeout)
}

// The server hears from its device that the connection is up, before the last
// message of the handshake comes.
func TestNotify(t *testing.T) {
	d := needDevice(t)
	a := ask(t, d.IPv4, plainRequest())
	require.NoError(t, a.server.id.Accept(rdmacm.ConnParam{QPNum: newQP()}))
	next(t, a.client.ch, rdmacm.EventConnectResponse)
	require.NoError(t, a.server.id.Notify(ibverbs.EventCommEstablished))
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventEstablished, ID: a.server.id}, next(t, a.server.ch, rdmacm.EventEstablished))
	require.ErrorIs(t, a.server.id.Notify(ibverbs.EventCommEstablished), syscall.EISCONN)
	require.ErrorIs(t, a.server.id.Notify(ibverbs.EventSQDrained), syscall.EINVAL)
	require.NoError(t, a.client.id.Establish())
	require.NoError(t, a.client.id.Disconnect())
	requireDisconnected(t, a.server)
}

// Enhancements go both ways, and can be refused.
func TestECE(t *testing.T) {
	d := needDevice(t)
	offer, taken := ibverbs.ECE{VendorID: 0x15b3, Options: 0x11}, ibverbs.ECE{VendorID: 0x15b3, Options: 0x1}
	for _, accepts := range []bool{true, false} {
		ln, client := listening(t, d.IPv4), newEnd(t)
		client.resolve(ln.id.LocalAddr())
		require.NoError(t, client.id.SetLocalECE(offer))
		require.NoError(t, client.id.Connect(plainRequest()))
		server := next(t, ln.ch, rdmacm.EventConnectRequest).ID
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		got, err := server.RemoteECE()
		require.NoError(t, err)
		require.Equal(t, offer, got)
		if !accepts {
			require.NoError(t, server.RejectECE([]byte("other ones")))
			requireRejected(t, next(t, client.ch, rdmacm.EventRejected), client.id, rdmacm.ReasonVendorOption, "other ones")
			continue
		}
		require.NoError(t, server.SetLocalECE(taken))
		require.NoError(t, server.Accept(rdmacm.ConnParam{QPNum: newQP()}))
		next(t, client.ch, rdmacm.EventConnectResponse)
		got, err = client.id.RemoteECE()
		require.NoError(t, err)
		require.Equal(t, taken, got)
	}
}

func TestGetAddrInfo(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	infos, err := rdmacm.GetAddrInfo(ctx, d.IPv4.String(), "7471", &rdmacm.AddrInfo{
		Flags: rdmacm.AddrNumericHost, PortSpace: rdmacm.PortSpaceTCP,
	})
	require.NoError(t, err)
	require.Equal(t, netip.AddrPortFrom(d.IPv4, 7471), infos[0].Dst)
	require.Equal(t, ibverbs.QPTypeRC, infos[0].QPType)
	require.Equal(t, rdmacm.PortSpaceTCP, infos[0].PortSpace)
	require.Equal(t, rdmacm.FamilyIPv4, infos[0].Family)

	infos, err = rdmacm.GetAddrInfo(ctx, "", "7471", &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, Family: rdmacm.FamilyIPv6})
	require.NoError(t, err)
	require.EqualValues(t, 7471, infos[0].Src.Port())

	_, err = rdmacm.GetAddrInfo(ctx, "no number", "", &rdmacm.AddrInfo{Flags: rdmacm.AddrNumericHost})
	_, ok := err.(*rdmacm.AddrinfoError)
	require.True(t, ok, "%T: %v", err, err)
}

// InfiniBand's own addresses are for its devices: on RoCE none has one.
func TestIBAddresses(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	id, err := ch.NewID(rdmacm.PortSpaceIB)
	require.NoError(t, err)
	defer func() { require.NoError(t, id.Close()) }()
	require.Equal(t, rdmacm.PortSpaceIB, id.PortSpace())
	require.ErrorIs(t, id.BindIB(rdmacm.IBAddr{GID: d.GID, ServiceID: 0x13f1d2f}), syscall.ENODEV)
	anywhere := rdmacm.IBAddr{ServiceID: 0x13f1d2f}
	require.NoError(t, id.BindIB(anywhere))
	require.Equal(t, anywhere.ServiceID, id.LocalIB().ServiceID)
	require.Zero(t, id.PeerIB())
	require.False(t, id.LocalAddr().IsValid())
}

// A path of one's own takes the place of the one that ResolveRoute finds.
func TestSetIBPaths(t *testing.T) {
	d := needDevice(t)
	ln, client := listening(t, d.IPv4), newEnd(t)
	require.NoError(t, client.id.ResolveAddr(netip.AddrPort{}, ln.id.LocalAddr(), time.Second))
	next(t, client.ch, rdmacm.EventAddrResolved)
	require.ErrorIs(t, client.id.SetIBPaths(), syscall.EINVAL)
	require.ErrorIs(t, client.id.SetIBPaths(libibverbs.PathData{}), syscall.EINVAL, "flags that the kernel asks for")
	require.NoError(t, client.id.ResolveRoute(time.Second))
	next(t, client.ch, rdmacm.EventRouteResolved)
}
