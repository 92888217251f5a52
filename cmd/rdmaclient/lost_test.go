// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// The answer shows the client that the server has its message, although the
// acknowledgement of that is lost. The server leaves as soon as it has
// answered, as C's does.
func TestLostAcknowledgement(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	server := programtest.NewPeer(t)
	server.LoseAck(1)
	ln := server.Endpoint(rdmacm.AddrPassive)
	require.NoError(t, ln.Listen(1))
	server.With(tested, func() {
		ep, err := ln.GetRequest(t.Context())
		require.NoError(t, err)
		sent, err := peers.Prepare(ep)
		require.NoError(t, err)
		require.NoError(t, ep.Accept(t.Context(), rdmacm.ConnParam{}))
		require.NoError(t, peers.Receive(t.Context(), ep))
		server.Send(ep, sent)
		require.NoError(t, ep.ID().Disconnect())
		require.NoError(t, ep.Close())
		require.NoError(t, ln.Close())
	})
}
