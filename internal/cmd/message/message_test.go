// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"io"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cmd/message"
	"github.com/verbena-go/verbena/internal/cmd/rdmaclient"
	"github.com/verbena-go/verbena/internal/cmd/rdmaserver"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

const at = "127.0.0.1"

// open returns an endpoint that is about to connect, or to listen.
func open(t *testing.T, port string, flags rdmacm.AddrInfoFlags) *endpoint.Endpoint {
	t.Helper()
	infos, err := rdmacm.GetAddrInfo(t.Context(), at, port, &rdmacm.AddrInfo{Flags: flags, PortSpace: rdmacm.PortSpaceTCP})
	require.NoError(t, err)
	ep, err := endpoint.Create(t.Context(), infos[0], nil, &message.Queues)
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

// client sends its message and waits for the acknowledgement, as C's does.
func client(t *testing.T, port string) {
	end := time.Now().Add(time.Minute)
	for {
		require.True(t, time.Now().Before(end), "nobody listens")
		ep := open(t, port, 0)
		sent, err := message.Prepare(ep)
		require.NoError(t, err)
		if _, err = ep.Connect(t.Context(), rdmacm.ConnParam{}); err != nil { // the server does not listen yet
			require.NoError(t, ep.Close())
			continue
		}
		send(t, ep, sent)
		require.NoError(t, message.Receive(t.Context(), ep))
		require.NoError(t, ep.Disconnect(t.Context()))
		require.NoError(t, ep.Close())
		return
	}
}

// server leaves as soon as the client has its message, as C's does.
func server(t *testing.T, ln *endpoint.Endpoint) {
	ep, err := ln.GetRequest(t.Context())
	require.NoError(t, err)
	sent, err := message.Prepare(ep)
	require.NoError(t, err)
	require.NoError(t, ep.Accept(t.Context(), rdmacm.ConnParam{}))
	require.NoError(t, message.Receive(t.Context(), ep))
	send(t, ep, sent)
	require.NoError(t, ep.ID().Disconnect())
	require.NoError(t, ep.Close())
	require.NoError(t, ln.Close())
}

// loseAck loses an acknowledgement: the first is of the client's message, the second of the answer.
func loseAck(t *testing.T, number int32) {
	var acks atomic.Int32
	softroce.SetFaults(func(p softroce.Packet) softroce.Fault {
		return softroce.Fault{Drop: p.Kind == softroce.Ack && acks.Add(1) == number}
	})
	t.Cleanup(func() {
		softroce.SetFaults(nil)
		require.GreaterOrEqual(t, acks.Load(), number)
	})
}

// A message has come, and its acknowledgement has not, when the receiver has done all it had to do.
func TestLostAcknowledgement(t *testing.T) {
	require.NoError(t, softroce.Use(softroce.Config{}))
	port := strconv.Itoa(20000 + rand.IntN(10000))
	for name, ack := range map[string]int32{"rdmaserver waits for the client": 1, "rdmaserver knows that the client has the answer": 2} {
		t.Run(name, func(t *testing.T) {
			loseAck(t, ack)
			status := make(chan int)
			go func() { status <- rdmaserver.Main([]string{"-s", at, "-p", port}, io.Discard, t.Output()) }()
			client(t, port)
			require.Zero(t, <-status)
		})
	}
	t.Run("rdmaclient takes the answer", func(t *testing.T) {
		loseAck(t, 1)
		ln := open(t, port, rdmacm.AddrPassive)
		require.NoError(t, ln.Listen(1))
		status := make(chan int)
		go func() { status <- rdmaclient.Main([]string{"-s", at, "-p", port}, io.Discard, t.Output()) }()
		server(t, ln)
		require.Zero(t, <-status)
	})
}
