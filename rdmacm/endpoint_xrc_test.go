package rdmacm_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// Soft-RoCE has no extended reliable connections, though the kernel lets one
// ask for them and listen. Both ends say so.
func TestXRCWithoutDevice(t *testing.T) {
	d := needDevice(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		ctx := bounded(t)
		ln, err := rdmacm.CreateEndpoint(ctx, rdmacm.AddrInfo{
			Flags: rdmacm.AddrPassive, QPType: ibverbs.QPTypeXRCRecv, Src: netip.AddrPortFrom(ip, 7471),
		}, nil, &ibverbs.QPConfig{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ln.Close()) })
		require.NoError(t, ln.Listen(0))

		info := rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceIB, QPType: ibverbs.QPTypeXRCSend, Dst: ln.ID().LocalAddr()}
		_, err = rdmacm.CreateEndpoint(ctx, info, nil, &ibverbs.QPConfig{MaxSendWR: 1})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, d.Name+" has no extended reliable connections (XRC): rdma_create_qp")

		info.Src = netip.AddrPortFrom(ip, 0)
		client, err := rdmacm.CreateEndpoint(ctx, info, nil, nil)
		require.NoError(t, err)
		require.Equal(t, ip, client.ID().LocalAddr().Addr())
		refused := inBackground(func() error {
			_, err := client.Connect(ctx, rdmacm.ConnParam{QPNum: 7})
			return err
		})
		_, err = ln.GetRequest(ctx)
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, d.Name+" has no extended reliable connections (XRC): ibv_open_xrcd")
		var rejected *rdmacm.RejectedError
		require.ErrorAs(t, <-refused, &rejected)
		require.NoError(t, client.Close())
	}
}
