package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// What the caller passes may lie in an object that has pointers of Go's, which
// must not get to C.
func TestDataNearPointers(t *testing.T) {
	d := needDevice(t)
	type near struct {
		data  [8]byte
		paths [1]libibverbs.PathData
		next  *near
	}
	n := &near{data: [8]byte([]byte("datadata")), next: new(near)}
	ln, client := listening(t, d.IPv4), newEnd(t)
	require.NoError(t, client.id.ResolveAddr(netip.AddrPort{}, ln.id.LocalAddr(), patience))
	next(t, client.ch, rdmacm.EventAddrResolved)
	require.ErrorIs(t, client.id.SetIBPaths(n.paths[:]...), syscall.EINVAL, "a path of zeros")
	require.NoError(t, client.id.ResolveRoute(patience))
	next(t, client.ch, rdmacm.EventRouteResolved)
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{QPNum: 1, PrivateData: n.data[:]}))
	request := next(t, ln.ch, rdmacm.EventConnectRequest)
	require.Equal(t, padded(n.data[:], maxRequestData), request.PrivateData)
	require.NoError(t, request.ID.Reject(n.data[2:6]))
	require.NoError(t, request.ID.Close())
	require.Equal(t, padded([]byte("tada"), maxRejectData), next(t, client.ch, rdmacm.EventRejected).PrivateData)

	datagrams, err := client.ch.NewID(rdmacm.PortSpaceUDP)
	require.NoError(t, err)
	defer func() { require.NoError(t, datagrams.Close()) }()
	require.NoError(t, datagrams.BindAddr(ln.id.LocalAddr()))
	for _, flags := range []rdmacm.JoinFlags{rdmacm.JoinFull, rdmacm.JoinSendOnly} {
		err := datagrams.JoinMulticast(someGroup, flags, n)
		if flags == rdmacm.JoinSendOnly && err != nil {
			require.ErrorIs(t, err, syscall.EOPNOTSUPP) // as Soft-RoCE says
			continue
		}
		require.NoError(t, err)
		require.Same(t, n, next(t, client.ch, rdmacm.EventMulticastJoin).Value)
		require.NoError(t, datagrams.LeaveMulticast(someGroup))
	}
}
