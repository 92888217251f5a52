package rdmacm_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// The private data that requests and answers about datagrams have room for.
const (
	maxDatagramRequest = 180
	maxDatagramReply   = 136
)

func listenDatagram(t testing.TB, ip netip.Addr) *rdmacm.DatagramListener {
	t.Helper()
	ln, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ln.Close()) })
	return ln
}

// acceptDatagram accepts the next request in the background.
func acceptDatagram(t testing.TB, ln *rdmacm.DatagramListener, config *rdmacm.DatagramConfig) <-chan *rdmacm.DatagramConn {
	ctx, result := bounded(t), make(chan *rdmacm.DatagramConn, 1)
	go func() {
		defer close(result)
		req, err := ln.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		conn, err := req.Accept(ctx, config)
		if err != nil {
			t.Error(err)
			return
		}
		result <- conn
	}()
	return result
}

// datagrams returns two ends, closed with the test.
func datagrams(t testing.TB, ip netip.Addr, clientConfig, serverConfig *rdmacm.DatagramConfig) (client, server *rdmacm.DatagramConn) {
	t.Helper()
	ln, err := rdmacm.ListenDatagram(bounded(t), netip.AddrPortFrom(ip, 0).String(), nil)
	require.NoError(t, err)
	result := acceptDatagram(t, ln, serverConfig)
	client, err = rdmacm.DialDatagram(bounded(t), ln.Addr().String(), clientConfig)
	require.NoError(t, err)
	server = <-result
	require.NotNil(t, server)
	require.NoError(t, ln.Close())
	t.Cleanup(func() {
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
	})
	return client, server
}

// memory returns 4 KiB of an end's own.
func memory(t testing.TB, c *rdmacm.DatagramConn) *ibverbs.MR {
	t.Helper()
	mr, err := c.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(t, err)
	return mr
}
