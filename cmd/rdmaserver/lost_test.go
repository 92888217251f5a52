// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
)

// converse sends the client's message and takes the answer, as C's client does.
func converse(t *testing.T, client *programtest.Peer) {
	var sent *ibverbs.MR
	ep := client.Dial(func(ep *endpoint.Endpoint) {
		var err error
		sent, err = peers.Prepare(ep)
		require.NoError(t, err)
	})
	client.Send(ep, sent)
	require.NoError(t, peers.Receive(t.Context(), ep))
	require.NoError(t, ep.Disconnect(t.Context()))
	require.NoError(t, ep.Close())
}

// When the server has done everything, an acknowledgement may still be missing.
// It waits for the client then.
func TestLostAcknowledgement(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	for name, ack := range map[string]int32{"of the client's message": 1, "of the answer": 2} {
		t.Run(name, func(t *testing.T) {
			client := programtest.NewPeer(t)
			client.LoseAck(ack)
			client.With(tested, func() { converse(t, client) })
		})
	}
}
