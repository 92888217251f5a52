// SPDX-License-Identifier: Apache-2.0

package programtest

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

// Peer is the other end of rdmaclient or rdmaserver, in the process of the
// test, over the device in user space.
type Peer struct {
	t    *testing.T
	port string
}

// peerAddress is the address of both ends.
const peerAddress = "127.0.0.1"

// NewPeer returns a peer with a random port.
func NewPeer(t *testing.T) *Peer { return &Peer{t, strconv.Itoa(20000 + rand.IntN(10000))} }

// Endpoint returns an endpoint that is about to connect, or with
// rdmacm.AddrPassive, to listen.
func (p *Peer) Endpoint(flags rdmacm.AddrInfoFlags) *endpoint.Endpoint {
	p.t.Helper()
	hints := rdmacm.AddrInfo{Flags: flags, PortSpace: rdmacm.PortSpaceTCP}
	infos, err := rdmacm.GetAddrInfo(p.t.Context(), peerAddress, p.port, &hints)
	require.NoError(p.t, err)
	ep, err := endpoint.Create(p.t.Context(), infos[0], nil, &peers.Queues)
	require.NoError(p.t, err)
	return ep
}

// Send sends a message and waits until it is acknowledged, as C's programs do.
func (p *Peer) Send(ep *endpoint.Endpoint, message *ibverbs.MR) {
	p.t.Helper()
	require.NoError(p.t, ep.PostSend(0, 0, message.All()))
	_, err := ep.SendComp(p.t.Context())
	require.NoError(p.t, err)
}

// LoseAck loses the n-th acknowledgement of this process. The first one is for
// the client's message, the second for the server's answer.
func (p *Peer) LoseAck(n int32) {
	var acks atomic.Int32
	softroce.SetFaults(func(packet softroce.Packet) softroce.Fault {
		return softroce.Fault{Drop: packet.Kind == softroce.KindAck && acks.Add(1) == n}
	})
	p.t.Cleanup(func() {
		softroce.SetFaults(nil)
		require.GreaterOrEqual(p.t, acks.Load(), n, "number of acknowledgements")
	})
}

// With runs the program while f, as its peer, does its part. The program must
// succeed.
func (p *Peer) With(program Main, f func()) {
	p.t.Helper()
	ended := make(chan string)
	go func() {
		status, _, stderr := program.Run("-s " + peerAddress + " -p " + p.port)
		ended <- strconv.Itoa(status) + stderr
	}()
	f()
	require.Equal(p.t, "0", <-ended, "status and what the program printed to stderr")
}
