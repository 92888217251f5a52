// SPDX-License-Identifier: Apache-2.0

package programtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

// ClientSaysWhy tests what a client with the given name prints if its
// connection ends too early: the event, and not that the device has flushed the
// client's requests, which the client may hear of first.
func ClientSaysWhy(t *testing.T, client Main, name string) {
	t.Helper()
	saysWhy(t, client, name, "-s "+peerAddress, func(p *Peer) func() *endpoint.Endpoint {
		ln := p.Endpoint(rdmacm.AddrPassive)
		require.NoError(p.t, ln.Listen(1))
		return func() *endpoint.Endpoint {
			ep, err := ln.GetRequest(p.t.Context())
			require.NoError(p.t, err)
			require.NoError(p.t, ep.Accept(p.t.Context(), rdmacm.ConnParam{}))
			require.NoError(p.t, ln.Close())
			return ep
		}
	})
}

// ServerSaysWhy is ClientSaysWhy for a server.
func ServerSaysWhy(t *testing.T, server Main, name string) {
	t.Helper()
	saysWhy(t, server, name, "", func(p *Peer) func() *endpoint.Endpoint {
		return func() *endpoint.Endpoint { return p.Dial(func(*endpoint.Endpoint) {}) }
	})
}

// saysWhy runs the program in a process of its own. prepare is called before
// the program starts, and returns a function that connects the peer.
func saysWhy(t *testing.T, program Main, name, args string, prepare func(*Peer) (connect func() *endpoint.Endpoint)) {
	t.Helper()
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	for why, of := range map[string]struct {
		end  func(*endpoint.Endpoint) error
		undo func() error
	}{
		"disconnected":   {func(ep *endpoint.Endpoint) error { return ep.ID().Disconnect() }, func() error { return nil }},
		"device removed": {func(*endpoint.Endpoint) error { return softroce.Remove() }, softroce.Insert},
	} {
		t.Run(why, func(t *testing.T) {
			p := NewPeer(t)
			p.args = args + " -p " + p.port
			connect := prepare(p)
			stderr := p.Fails(program, func() {
				ep := connect()
				require.NoError(t, of.end(ep))
				require.NoError(t, ep.Close())
			})
			require.NoError(t, of.undo())
			// A server may not know yet that it is connected.
			require.Regexp(t, "^"+name+`: (rdma_accept \(.*\): )?`+why+"\n$", stderr)
		})
	}
}
