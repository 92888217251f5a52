// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rsocket"
	"github.com/verbena-go/verbena/rsocket/internal/protocol"
)

// A handshake that fails gives its place in the backlog to the next one.
func TestFailedHandshakesLeaveTheBacklog(t *testing.T) {
	const backlog = 3
	hello := protocol.Hello{
		Credits: 1, Table: protocol.Region{Length: protocol.Entries}, Buffer: protocol.Region{Length: 1},
	}.Marshal()
	for name, fail := range map[string]func(t *testing.T, address string){
		"it is no rsocket's": func(t *testing.T, address string) {
			_, err := rdmacm.Dial(bounded(t), address, &rdmacm.Config{PrivateData: []byte("no hello")})
			require.ErrorAs(t, err, new(*rdmacm.RejectedError), "the listener has not answered a request")
		},
		"the peer gives up": func(t *testing.T, address string) { giveUp(t, address, hello) },
	} {
		t.Run(name, func(t *testing.T) {
			d := needDevice(t)
			lc := rsocket.ListenConfig{Config: shared(rsocket.Config{HandshakeTimeout: 2 * patience}), Backlog: backlog}
			ln, err := lc.Listen(bounded(t), "rdma", netip.AddrPortFrom(d.IPv4, 0).String())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, ln.Close()) })
			for range backlog {
				fail(t, ln.Addr().String())
			}
			var dialer rsocket.Dialer
			conn, err := dialer.DialContext(bounded(t), "rdma", ln.Addr().String())
			require.NoError(t, err, "a handshake that has failed keeps its place in the backlog")
			client, server := closedWith(t, conn), acceptOne(t, ln)
			echo(t, client, server)
		})
	}
}

// giveUp asks for a connection, and destroys its ID when the listener has
// accepted.
func giveUp(t *testing.T, address string, hello []byte) {
	ch := cmtest.NewChannel(t)
	id := cmtest.NewID(t, ch)
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(address), time.Second))
	cmtest.Next(t, ch, rdmacm.EventAddrResolved)
	require.NoError(t, id.ResolveRoute(time.Second))
	cmtest.Next(t, ch, rdmacm.EventRouteResolved)
	// The number of an earlier request could still be in use for the listener.
	require.NoError(t, id.Connect(rdmacm.ConnParam{PrivateData: hello, QPNum: uint32(1 + rand.IntN(1<<24-2))}))
	cmtest.Next(t, ch, rdmacm.EventConnectResponse)
	require.NoError(t, id.Close())
}
