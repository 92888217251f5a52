package rdmacm_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// What GetAddrInfo finds is enough for both ends.
func TestDatagramInfo(t *testing.T) {
	d := needDevice(t)
	ctx := bounded(t)
	const port = "7199"
	infos, err := rdmacm.GetAddrInfo(ctx, d.IPv4.String(), port, &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceUDP})
	require.NoError(t, err)
	ln, err := rdmacm.ListenDatagramInfo(ctx, infos[0], nil)
	require.NoError(t, err)
	require.Equal(t, infos[0].Src, ln.Addr())
	accepted := acceptDatagram(t, ln, nil)
	_, err = rdmacm.ListenDatagramInfo(ctx, infos[0], nil)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.ErrorContains(t, err, "listen for datagrams on 192.0.2.1:7199: ")

	infos, err = rdmacm.GetAddrInfo(ctx, d.IPv4.String(), port, nil) // without a port space
	require.NoError(t, err)
	infos[0].PortSpace = 0
	client, err := (&rdmacm.Dialer{TOS: 8}).DialDatagramInfo(ctx, infos[0], nil)
	require.NoError(t, err)
	server := <-accepted
	require.NotNil(t, server)
	require.Equal(t, infos[0].Dst, client.RemoteAddr())
	require.Equal(t, server.QP().Num(), client.Peer().QPNum)
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	require.NoError(t, ln.Close())
	_, err = new(rdmacm.Dialer).DialDatagramInfo(ctx, infos[0], nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.ErrorContains(t, err, "dial 192.0.2.1:7199: ")
}

func TestDatagramInfoMistakes(t *testing.T) {
	d := needDevice(t)
	ctx, gone := bounded(t), canceled(t)
	var none context.Context
	forConnections := rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP}
	dial := func(ctx context.Context, d *rdmacm.Dialer, info rdmacm.AddrInfo) error {
		_, err := d.DialDatagramInfo(ctx, info, nil)
		return err
	}
	listen := func(ctx context.Context, info rdmacm.AddrInfo) error {
		_, err := rdmacm.ListenDatagramInfo(ctx, info, nil)
		return err
	}
	joinIB := func(ctx context.Context, config *rdmacm.GroupConfig) error {
		_, err := rdmacm.JoinGroupIB(ctx, rdmacm.IBAddr{GID: ibverbs.GID{0: 0xff}}, config)
		return err
	}
	for name, tt := range map[string]struct {
		err, want error
		text      string
	}{
		"no dialer":          {dial(ctx, nil, rdmacm.AddrInfo{}), syscall.EINVAL, "DialDatagramInfo"},
		"no context":         {dial(none, new(rdmacm.Dialer), rdmacm.AddrInfo{}), syscall.EINVAL, "DialDatagramInfo"},
		"context over":       {dial(gone, new(rdmacm.Dialer), rdmacm.AddrInfo{}), context.Canceled, ""},
		"no destination":     {dial(ctx, new(rdmacm.Dialer), rdmacm.AddrInfo{}), syscall.EINVAL, "no destination"},
		"for connections":    {dial(ctx, new(rdmacm.Dialer), forConnections), syscall.EINVAL, "is not for datagrams"},
		"listening, context": {listen(gone, rdmacm.AddrInfo{}), context.Canceled, ""},
		"listening, TCP":     {listen(ctx, forConnections), syscall.EINVAL, "is not for datagrams"},
		"joining, context":   {joinIB(gone, nil), context.Canceled, ""},
		"joining, nothing":   {joinIB(ctx, nil), syscall.EINVAL, "LocalAddr is needed"},
		"joining, TCP":       {joinIB(ctx, &rdmacm.GroupConfig{LocalAddr: d.IPv4.String(), PortSpace: rdmacm.PortSpaceTCP}), syscall.EINVAL, "is not for datagrams"},
		"joining, not ours":  {joinIB(ctx, &rdmacm.GroupConfig{LocalAddr: "192.0.2.99"}), syscall.EADDRNOTAVAIL, "192.0.2.99"},
		"joining on RoCE":    {joinIB(ctx, &rdmacm.GroupConfig{LocalAddr: d.IPv4.String()}), errors.ErrUnsupported, "rdma_join_multicast"},
	} {
		require.ErrorIs(t, tt.err, tt.want, name)
		require.ErrorContains(t, tt.err, tt.text, name)
	}
}
