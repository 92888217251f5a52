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
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

var (
	xrcClient = rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceIB, QPType: ibverbs.QPTypeXRCSend, Dst: netip.MustParseAddrPort(address)}
	xrcServer = rdmacm.AddrInfo{
		Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceIB, QPType: ibverbs.QPTypeXRCRecv, Src: netip.MustParseAddrPort(address),
	}
)

// The sending end of an extended reliable connection.
func TestXRCClient(t *testing.T) {
	c := open(t)
	p := fakelib.OpenProvider(t)
	ep, err := endpoint.Create(bounded(t), xrcClient, nil, &ibverbs.QPConfig{SendQueue: 1})
	require.NoError(t, err)
	create := c.Last("rdma_create_ep")
	info := fakelib.Struct[librdmacm.Addrinfo](create, 1)
	require.EqualValues(t, librdmacm.RAI_PASSIVE, info.AiFlags)
	require.EqualValues(t, rdmacm.PortSpaceIB, info.AiPortSpace)
	require.EqualValues(t, ibverbs.QPTypeXRCSend, info.AiQpType)
	require.EqualValues(t, 16, info.AiSrcLen, "IPv4, as the destination")
	require.Zero(t, create.Arg(3), "no queue pair before the address is resolved")
	require.NotContains(t, c.Names(), "rdma_bind_addr")
	require.Equal(t, ibverbs.QPTypeXRCSend, ep.QP().Type())
	require.NotContains(t, p.Names(), "ibv_open_xrcd")

	ev, err := ep.Connect(bounded(t), rdmacm.ConnParam{})
	require.NoError(t, err)
	require.Equal(t, rdmacm.EventEstablished, ev.Type)
	_, err = ep.RecvComp(bounded(t))
	require.ErrorIs(t, err, syscall.EINVAL, "it sends only")
	require.NoError(t, ep.Close())
}

// The receiving end: a queue pair with a domain, then a shared receive queue in
// that.
func TestXRCServer(t *testing.T) {
	c := open(t)
	p := fakelib.OpenProvider(t)
	ln, err := endpoint.Create(bounded(t), xrcServer, nil, &ibverbs.QPConfig{})
	require.NoError(t, err)
	require.NotContains(t, c.Names(), "rdma_bind_addr", "rdma_create_ep does that")
	require.NoError(t, ln.Listen(1))
	ep, err := ln.GetRequest(bounded(t))
	require.NoError(t, err)
	require.Equal(t, ibverbs.QPTypeXRCRecv, ep.QP().Type())
	require.EqualError(t, ep.PostRecv(0), "rdma_post_recv: rdma_post_srq_recv (unbound id): create a shared receive queue first")
	_, err = ep.RecvComp(bounded(t))
	require.ErrorIs(t, err, syscall.EINVAL)

	srq, err := ep.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 1})
	require.NoError(t, err)
	require.Contains(t, p.Names(), "ibv_create_srq_ex")
	domain := p.Last("ibv_open_xrcd")
	number, err := srq.Num()
	require.NoError(t, err)
	require.NotZero(t, number)
	memory, err := ep.RegMsgs(make([]byte, 16))
	require.NoError(t, err)
	p.Next("ibv_query_srq", fakelib.Writes(1, 0, fakelib.Bytes(&libibverbs.SrqAttr{MaxWr: 1, MaxSge: 1})))
	p.Forget()
	require.NoError(t, ep.PostRecv(0, memory.All()))
	require.Equal(t, []string{"ibv_query_srq", "ibv_post_srq_recv"}, p.Names())
	require.NoError(t, ep.Accept(bounded(t), rdmacm.ConnParam{PrivateData: []byte{1, 2, 3, 4}}))
	_, err = ep.RecvComp(canceled(t))
	require.ErrorIs(t, err, canceled(t).Err(), "its completions come from the shared receive queue's")

	p.Forget()
	require.NoError(t, ep.Close())
	require.Equal(t, []int64{domain.Result()}, p.Last("ibv_close_xrcd").Args())
	require.NoError(t, ln.Close())
}

// The caller's own domain and completion queue are used, and left alone.
func TestXRCServerWithDomain(t *testing.T) {
	open(t)
	p := fakelib.OpenProvider(t)
	ln, err := endpoint.Create(bounded(t), xrcServer, nil, nil)
	require.NoError(t, err)
	require.NoError(t, ln.Listen(1))
	ep, err := ln.GetRequest(bounded(t))
	require.NoError(t, err)
	device, err := ep.ID().Device()
	require.NoError(t, err)
	domain, err := device.OpenXRCD(ibverbs.XRCDConfig{})
	require.NoError(t, err)
	cq, err := device.CreateCQ(ibverbs.CQConfig{CompQueue: 1})
	require.NoError(t, err)
	p.Forget()
	_, err = ep.CreateQP(nil, ibverbs.QPConfig{XRCD: domain})
	require.NoError(t, err)
	_, err = ep.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 1, XRCD: domain, CQ: cq})
	require.NoError(t, err)
	require.NotContains(t, p.Names(), "ibv_open_xrcd")
	require.NotContains(t, p.Names(), "ibv_create_cq")
	require.NoError(t, ep.Close())
	require.NoError(t, ln.Close())
	require.NoError(t, cq.Close())
	require.NoError(t, domain.Close())
}

// What fails says so, and leaves nothing behind.
func TestXRCFails(t *testing.T) {
	c := open(t)
	p := fakelib.OpenProvider(t)
	client := func() error {
		ep, err := endpoint.Create(bounded(t), xrcClient, nil, &ibverbs.QPConfig{SendQueue: 1})
		if err == nil {
			err = ep.Close()
		}
		return err
	}
	server := func() error {
		ln, err := endpoint.Create(bounded(t), xrcServer, nil, &ibverbs.QPConfig{})
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, ln.Close()) }()
		require.NoError(t, ln.Listen(1))
		ep, err := ln.GetRequest(bounded(t))
		if err != nil {
			return err
		}
		defer func() { require.NoError(t, ep.Close()) }()
		_, err = ep.CreateSRQ(nil, ibverbs.SRQConfig{RecvQueue: 1})
		return err
	}
	for _, run := range []func() error{client, server} {
		require.NoError(t, run())
		for _, w := range ways {
			for _, function := range []string{"rdma_create_ep", "rdma_migrate_id"} {
				w.fail(c, function, syscall.ENOBUFS)
				requireErrno(t, run(), function, syscall.ENOBUFS)
			}
			w.fail(c, "rdma_create_qp_ex", syscall.EOPNOTSUPP)
			require.ErrorContains(t, run(), "fake0 does not support extended reliable connections (XRC): rdma_create_qp")
		}
		require.NoError(t, run())
	}
	for _, function := range []string{"ibv_open_xrcd", "ibv_create_srq_ex"} {
		p.Next(function, fakelib.Returns(0, syscall.EOPNOTSUPP))
		err := server()
		require.ErrorContains(t, err, "fake0 does not support extended reliable connections (XRC): "+function)
		require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		p.Next(function, fakelib.Returns(0, syscall.ENOMEM))
		err = server()
		require.ErrorIs(t, err, syscall.ENOMEM)
		require.NotContains(t, err.Error(), "extended")
	}

	other := xrcClient
	other.PortSpace = rdmacm.PortSpaceTCP
	_, err := endpoint.Create(bounded(t), other, nil, nil)
	require.ErrorIs(t, err, syscall.EINVAL)
	require.ErrorContains(t, err, "rdma_create_ep: AddrInfo.QPType is IBV_QPT_XRC_SEND, which needs port space RDMA_PS_IB, not RDMA_PS_TCP")
	other = xrcServer
	other.Src = netip.AddrPort{}
	_, err = endpoint.Create(bounded(t), other, nil, nil)
	require.ErrorContains(t, err, "AddrInfo.Src is not set")
}
