// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

const at = "127.0.0.1"

// open returns an endpoint that is about to listen.
func open(t *testing.T, port string) *endpoint.Endpoint {
	t.Helper()
	infos, err := rdmacm.GetAddrInfo(t.Context(), at, port, &rdmacm.AddrInfo{Flags: rdmacm.AddrPassive, PortSpace: rdmacm.PortSpaceTCP})
	require.NoError(t, err)
	ep, err := endpoint.Create(t.Context(), infos[0], nil, &peers.Queues)
	require.NoError(t, err)
	return ep
}

// send waits for the acknowledgement.
func send(t *testing.T, ep *endpoint.Endpoint, message *ibverbs.MR) {
	t.Helper()
	require.NoError(t, ep.PostSend(0, 0, message.All()))
	_, err := ep.SendComp(t.Context())
	require.NoError(t, err)
}

// loseAck loses the first acknowledgement, that of the client's message.
func loseAck(t *testing.T) {
	var acks atomic.Int32
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
		return softroce.Fault{Drop: p.Kind == softroce.KindAck && acks.Add(1) == 1}
	})
	t.Cleanup(func() {
		softroce.SetFaults(nil)
		require.Positive(t, acks.Load())
	})
}

// server leaves as soon as the client has its message, as C's does.
func server(t *testing.T, ln *endpoint.Endpoint) {
	ep, err := ln.GetRequest(t.Context())
	require.NoError(t, err)
	sent, err := peers.Prepare(ep)
	require.NoError(t, err)
	require.NoError(t, ep.Accept(t.Context(), rdmacm.ConnParam{}))
	require.NoError(t, peers.Receive(t.Context(), ep))
	send(t, ep, sent)
	require.NoError(t, ep.ID().Disconnect())
	require.NoError(t, ep.Close())
	require.NoError(t, ln.Close())
}

// The answer shows the client that the server has its message, although the
// acknowledgement of that is lost.
func TestLostAcknowledgement(t *testing.T) {
	if !process.Alone(t, "VERBENA_DEVICE=soft") {
		return
	}
	port := strconv.Itoa(20000 + rand.IntN(10000))
	loseAck(t)
	ln := open(t, port)
	require.NoError(t, ln.Listen(1))
	ended := make(chan string)
	go func() {
		status, _, stderr := tested.Run("-s " + at + " -p " + port)
		ended <- strconv.Itoa(status) + stderr
	}()
	server(t, ln)
	require.Equal(t, "0", <-ended)
}
