// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/rdmacm"
)

// What cannot be right is refused before C is called, by an ArgumentError that
// names the operation and the object.
func TestRefusals(t *testing.T) {
	c := open(t)
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	id, err := ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(id.Close(), ch.Close())) })
	group := netip.MustParseAddr("239.1.2.3")
	to := netip.MustParseAddrPort(address)
	ctx := bounded(t)
	var none context.Context
	c.Forget()
	for _, tt := range []struct {
		err  error
		want string
		is   error // nil: EINVAL
	}{
		{second(id.CreateQP(nil, ibverbs.QPConfig{})), "rdma_create_qp: pd is nil", nil},
		{id.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, time.Second), "rdma_resolve_addr (unbound id): no destination: dst is the zero AddrPort", nil},
		{id.ResolveRoute(time.Second), "rdma_resolve_route (unbound id): resolve the address first", nil},
		{id.Connect(rdmacm.ConnParam{}), "rdma_connect (unbound id): resolve the address and the route first", nil},
		{id.Accept(rdmacm.ConnParam{}), "rdma_accept (unbound id): receive a connection request first", nil},
		{id.JoinMulticast(group, rdmacm.JoinFull, nil), "rdma_join_multicast (unbound id): bind or resolve the address first", nil},
		{id.JoinMulticast(to.Addr(), rdmacm.JoinFull, nil), "rdma_join_multicast (192.0.2.1): the address is not that of a multicast group", nil},
		{id.SetAckTimeout(0), "rdma_set_option (unbound id): the ack timeout is 0s, not from 1ns to 2h26m36.093022208s", nil},
		{id.SetIBPaths(), "rdma_set_option (unbound id): SetIBPaths needs at least one path", nil},
		{second(id.Device()), "ID.Device (unbound id): bind or resolve the address first", nil},
		{second(ch.Next(none)), "EventChannel.Next: ctx is nil", nil},
		{second(rdmacm.Dial(none, address, nil)), "Dial: ctx is nil", nil},
		{second((*rdmacm.Dialer)(nil).Dial(ctx, address)), "Dialer.Dial: dialer is nil", nil},
		{
			second(rdmacm.Listen(ctx, "127.0.0.1:7", nil)),
			"listen on 127.0.0.1:7: rdma_listen (127.0.0.1): no RDMA device has this loopback address, so the kernel would listen on every address of every device: " +
				"use the address of a device, or no host to listen on all of them", syscall.EADDRNOTAVAIL,
		},
		{
			second((&rdmacm.Dialer{LocalAddr: "::1"}).Dial(ctx, address)),
			"dial 192.0.2.1:7471: rdma_resolve_addr (192.0.2.1:7471): the host has no address of the same family as the local address ::1", syscall.EAFNOSUPPORT,
		},
		{second(rdmacm.JoinGroupIB(ctx, rdmacm.IBAddr{}, nil)), "join 0000:0000:0000:0000:0000:0000:0000:0000: rdma_bind_addr: GroupConfig.LocalAddr is empty; set it, as there are no routes to InfiniBand groups", nil},
		{
			second(rdmacm.ListenDatagramInfo(ctx, rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP}, nil)),
			"rdma_create_id: port space is RDMA_PS_TCP, not PortSpaceUDP or PortSpaceIPoIB", nil,
		},
		{second((*rdmacm.Request)(nil).Accept(ctx, nil)), "Request.Accept: the request is nil, or did not come from Accept", os.ErrInvalid},
		{(*rdmacm.Conn)(nil).Close(), "the connection is nil, or was not made by this package", os.ErrInvalid},
		{(*rdmacm.Listener)(nil).Close(), "the Listener is nil, or was not made by this package", os.ErrInvalid},
		{(*rdmacm.Transfer)(nil).Wait(ctx), "Transfer.Wait: the Transfer is nil or was not posted", os.ErrInvalid},
		{second((*rdmacm.Receive)(nil).Wait(ctx)), "Receive.Wait: the receive is nil or was not posted", os.ErrInvalid},
		{(*rdmacm.ID)(nil).Close(), "the object is nil, or was not made by the package's functions", os.ErrInvalid},
	} {
		requireRefused(t, tt.err)
		require.EqualError(t, tt.err, tt.want)
		if tt.is == nil {
			tt.is = syscall.EINVAL
		}
		require.ErrorIs(t, tt.err, tt.is)
	}
	require.NotContains(t, c.Names(), "rdma_resolve_addr")
}

// A Config's errors name the field, and the operation that it is for.
func TestConfigRefusals(t *testing.T) {
	open(t)
	device, err := ibverbs.Open("fake0") // not as librdmacm has it open
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(pd.Close(), device.Close())) })
	for want, config := range map[string]rdmacm.Config{
		"Config.SendQueue is -1, not from 0 to 2147483647":                                                              {SendQueue: -1},
		"Config.RecvQueue is -2, not from 0 to 2147483647":                                                              {RecvQueue: -2},
		"Config.Segments is -3, not from 0 to 2147483647":                                                               {Segments: -3},
		"Config.MinRNRTimer is 1s, not from 0 to 655.36ms":                                                              {MinRNRTimer: time.Second},
		"Config.PD is not of the connection's device: allocate it on the device from rdmacm.Devices or Listener.Device": {PD: pd},
	} {
		_, err := rdmacm.Dial(bounded(t), address, &config)
		requireRefused(t, err)
		require.ErrorIs(t, err, syscall.EINVAL)
		require.ErrorContains(t, err, "dial "+address+": rdma_create_qp") // and, for the domain, the ID
		require.ErrorContains(t, err, ": "+want)
	}
	_, err = rdmacm.DialDatagram(bounded(t), address, &rdmacm.DatagramConfig{SendQueue: -1})
	requireRefused(t, err)
	require.ErrorContains(t, err, "): DatagramConfig.SendQueue is -1, not from 0 to 2147483647")
}

// requireRefused looks at an error of a call that C has not failed.
func requireRefused(t *testing.T, err error) {
	t.Helper()
	var refused *ibverbs.ArgumentError
	require.ErrorAs(t, err, &refused)
	var failed *ibverbs.Error
	require.False(t, errors.As(err, &failed), "%v", err)
	requirePublic(t, err)
}

// requirePublic looks for errors of types that users cannot name.
func requirePublic(t *testing.T, err error) {
	t.Helper()
	for _, internal := range []any{
		new(*cerr.Error), new(*cerr.ArgumentError), new(*cerr.BusyError), new(*cerr.AddrInfoError), new(*cerr.SymbolError), new(*cerr.LibraryError),
	} {
		require.False(t, errors.As(err, internal), "%T: %v", internal, err)
	}
}

func second[T any](_ T, err error) error { return err }
