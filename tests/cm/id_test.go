// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// ids are a listening id, the one of a request to it, and one that is resolved.
type ids struct {
	channel, other            *rdmacm.EventChannel
	listener, request, client *rdmacm.ID
}

func openIDs(t *testing.T) ids {
	t.Helper()
	ch, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	other, err := rdmacm.NewEventChannel()
	require.NoError(t, err)
	i := ids{channel: ch, other: other}
	i.listener, err = ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.NoError(t, i.listener.BindAddr(netip.MustParseAddrPort(address)))
	require.NoError(t, i.listener.Listen(1))
	ev, err := ch.Next(bounded(t))
	require.NoError(t, err)
	require.Same(t, i.listener, ev.ListenID)
	i.request = ev.ID
	i.client, err = ch.NewID(rdmacm.PortSpaceTCP)
	require.NoError(t, err)
	require.NoError(t, i.client.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(address), time.Second))
	_, err = ch.Next(bounded(t))
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, id := range []*rdmacm.ID{i.request, i.listener, i.client} {
			require.NoError(t, id.Close())
		}
		require.NoError(t, ch.Close())
		require.NoError(t, other.Close())
	})
	return i
}

// Every call of an id, as a library of either kind fails it.
func TestIDsOverLibraries(t *testing.T) {
	c := open(t)
	i := openIDs(t)
	addr := netip.MustParseAddrPort(address)
	for function, call := range map[string]func() error{
		"rdma_create_id":    func() error { _, err := i.channel.NewID(rdmacm.PortSpaceTCP); return err },
		"rdma_bind_addr":    func() error { return i.client.BindAddr(addr) },
		"rdma_resolve_addr": func() error { return i.client.ResolveAddr(addr, addr, time.Second) },
		"rdma_resolve_route": func() error {
			return i.client.ResolveRoute(time.Second)
		},
		"rdma_connect":          func() error { return i.client.Connect(rdmacm.ConnParam{PrivateData: []byte("hello")}) },
		"rdma_listen":           func() error { return i.listener.Listen(7) },
		"rdma_accept":           func() error { return i.request.Accept(rdmacm.ConnParam{QPNum: 3}) },
		"rdma_reject":           func() error { return i.request.Reject(nil) },
		"rdma_reject_ece":       func() error { return i.request.RejectECE(nil) },
		"rdma_establish":        i.client.Establish,
		"rdma_disconnect":       i.client.Disconnect,
		"rdma_notify":           func() error { return i.client.Notify(ibverbs.EventCommEstablished) },
		"rdma_set_option":       func() error { return i.client.SetTOS(1) },
		"rdma_migrate_id":       func() error { return i.client.Migrate(i.other) },
		"rdma_init_qp_attr":     func() error { _, _, err := i.client.InitQPAttr(ibverbs.QPStateRTR); return err },
		"rdma_set_local_ece":    func() error { return i.client.SetLocalECE(ibverbs.ECE{}) },
		"rdma_get_remote_ece":   func() error { _, err := i.client.RemoteECE(); return err },
		"rdma_write_cm_event":   func() error { return i.client.WriteUserEvent(1, 2) },
		"rdma_resolve_addrinfo": func() error { return i.client.ResolveAddrInfo("peer", "7471", nil) },
		"rdma_query_addrinfo":   func() error { _, err := i.client.QueryAddrInfo(); return err },
		"rdma_create_qp_ex":     func() error { return createQP(t, i.client) },
		"rdma_destroy_id":       i.client.Close,
	} {
		for _, w := range ways {
			t.Run(function+"/"+w.name, func(t *testing.T) {
				c.Forget()
				w.fail(c, function, syscall.ENOBUFS)
				requireErrno(t, call(), function, syscall.ENOBUFS)
				require.Contains(t, c.Names(), function)
			})
		}
	}
}

// createQP tries to give an id a queue pair.
func createQP(t *testing.T, id *rdmacm.ID) error {
	t.Helper()
	device, err := id.Device()
	require.NoError(t, err)
	pd, err := device.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, pd.Close()) }()
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, cq.Close()) }()
	qp, err := id.CreateQP(pd, ibverbs.QPConfig{SendCQ: cq, RecvCQ: cq, SendQueue: 1, RecvQueue: 1})
	if err == nil {
		require.NoError(t, qp.Close())
	}
	return err
}
