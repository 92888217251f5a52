// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// The hint of a bind or a resolution describes this machine.
func TestHintsOfAddresses(t *testing.T) {
	d := needDevice(t)
	ch := newChannel(t)
	foreign := netip.MustParseAddr("203.0.113.77")
	t.Run("no such address", func(t *testing.T) {
		err := newID(t, ch).BindAddr(netip.AddrPortFrom(foreign, 0))
		require.ErrorContains(t, err, "no RDMA device has this address")
		require.NotErrorIs(t, err, syscall.EADDRINUSE)
	})
	t.Run("no such local address", func(t *testing.T) {
		err := newID(t, ch).ResolveAddr(netip.AddrPortFrom(foreign, 0), netip.AddrPortFrom(d.IPv4, 7), time.Second)
		require.Error(t, err)
		require.Contains(t, err.Error(), "no RDMA device ")
	})
	for name, taken := range map[string]netip.Addr{"at the address": d.IPv4, "at every address": netip.IPv6Unspecified()} {
		t.Run("port taken "+name, func(t *testing.T) {
			first := newID(t, ch)
			require.NoError(t, first.BindAddr(netip.AddrPortFrom(taken, 0)))
			require.NoError(t, first.Listen(1))
			err := newID(t, ch).BindAddr(netip.AddrPortFrom(d.IPv4, first.LocalAddr().Port()))
			require.ErrorIs(t, err, syscall.EADDRINUSE)
			require.NotContains(t, err.Error(), "no RDMA device")
			_, err = rdmacm.Listen(bounded(t), netip.AddrPortFrom(d.IPv4, first.LocalAddr().Port()).String(), nil)
			require.ErrorIs(t, err, syscall.EADDRINUSE)
		})
	}
}
