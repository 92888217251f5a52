// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"net/netip"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
)

// A missing or unspecified host means the local system, as for net.Dial.
func TestDialLocalSystem(t *testing.T) {
	d := needDevice(t)
	ln, err := rdmacm.Listen(bounded(t), ":0", nil)
	require.NoError(t, err)
	port := strconv.Itoa(int(ln.Addr().Port()))
	for _, address := range []string{":" + port, "0.0.0.0:" + port, "[::]:" + port, ln.Addr().String()} {
		result := acceptOne(bounded(t), ln, nil)
		conn, err := rdmacm.Dial(bounded(t), address, inPool(nil))
		require.NoError(t, err, address)
		a := cmtest.Take(t, result, "the connection")
		require.NoError(t, a.err)
		require.NoError(t, conn.Close())
		require.NoError(t, a.conn.Close())
	}
	require.NoError(t, ln.Close())
	addrs, err := rdmacm.LocalAddrs()
	require.NoError(t, err)
	require.Contains(t, addrs, d.IPv4)
	_, err = rdmacm.Dial(bounded(t), ":"+port, inPool(nil))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	if len(addrs) > 1 {
		for _, addr := range addrs {
			require.ErrorContains(t, err, netip.AddrPortFrom(addr, ln.Addr().Port()).String()+": connection rejected: no program listens")
		}
	}
	for _, addr := range addrs {
		require.True(t, addr.IsValid() && addr != netip.IPv4Unspecified() && !addr.IsLinkLocalUnicast())
	}
}
