// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/cmd/internal/programtest"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
)

// converse sends the client's message and takes the answer, as C's client does.
func converse(t *testing.T, client *programtest.Peer) {
	end := time.Now().Add(time.Minute)
	for {
		require.True(t, time.Now().Before(end), "the server does not listen")
		ep := client.Endpoint(0)
		sent, err := peers.Prepare(ep)
		require.NoError(t, err)
		if _, err = ep.Connect(t.Context(), rdmacm.ConnParam{}); err != nil { // the server does not listen yet
			require.NoError(t, ep.Close())
			continue
		}
		client.Send(ep, sent)
		require.NoError(t, peers.Receive(t.Context(), ep))
		require.NoError(t, ep.Disconnect(t.Context()))
		require.NoError(t, ep.Close())
		return
	}
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
