// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

const at = "127.0.0.1"

// open returns an endpoint that is about to connect.
func open(t *testing.T, port string) *endpoint.Endpoint {
	t.Helper()
	infos, err := rdmacm.GetAddrInfo(t.Context(), at, port, &rdmacm.AddrInfo{PortSpace: rdmacm.PortSpaceTCP})
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

// loseAck loses an acknowledgement: the first is of the client's message, the
// second of the answer.
func loseAck(t *testing.T, number int32) {
	var acks atomic.Int32
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
		return softroce.Fault{Drop: p.Kind == softroce.KindAck && acks.Add(1) == number}
	})
	t.Cleanup(func() {
		softroce.SetFaults(nil)
		require.GreaterOrEqual(t, acks.Load(), number)
	})
}

// client sends its message and waits for the acknowledgement, as C's does.
func client(t *testing.T, port string) {
	end := time.Now().Add(time.Minute)
	for {
		require.True(t, time.Now().Before(end), "the server does not listen")
		ep := open(t, port)
		sent, err := peers.Prepare(ep)
		require.NoError(t, err)
		if _, err = ep.Connect(t.Context(), rdmacm.ConnParam{}); err != nil { // the server does not listen yet
			require.NoError(t, ep.Close())
			continue
		}
		send(t, ep, sent)
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
	port := strconv.Itoa(20000 + rand.IntN(10000))
	for name, ack := range map[string]int32{"of the client's message": 1, "of the answer": 2} {
		t.Run(name, func(t *testing.T) {
			loseAck(t, ack)
			ended := make(chan string)
			go func() {
				status, _, stderr := tested.Run("-s " + at + " -p " + port)
				ended <- strconv.Itoa(status) + stderr
			}()
			client(t, port)
			require.Equal(t, "0", <-ended)
		})
	}
}
