// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// The source that the device knows by itself is the one that the system has,
// also for a program that has bound another address.
func TestSource(t *testing.T) {
	w := newWired(t)
	h := (*host)(w.Node)
	require.NoError(t, w.devices.cards[0].current.SetGID(1, engine.GIDEntry{GID: wire.GIDOf(loopback)}))
	for _, dst := range []string{"127.0.0.1", "127.0.0.2"} {
		for _, src := range []netip.Addr{{}, loopback, netip.MustParseAddr("127.0.0.3")} {
			want, err := Route(netip.MustParseAddr(dst), src)
			require.NoError(t, err)
			got, err := h.source(netip.MustParseAddr(dst), src)
			require.NoError(t, err)
			require.Equal(t, want, got, "%v from %v", dst, src)
		}
	}
}
