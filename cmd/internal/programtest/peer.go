// SPDX-License-Identifier: Apache-2.0

package programtest

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/cmd/internal/peers"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
	"github.com/verbena-go/verbena/rdmacm/endpoint"
	"github.com/verbena-go/verbena/softroce"
)

// Peer is the other end of a program of package peers, in the process of the
// test, over the device in user space.
type Peer struct {
	t          *testing.T
	port, args string // args are those of the program
}

// peerAddress is the address of both ends.
const peerAddress = "127.0.0.1"

// NewPeer returns a peer with a random port.
func NewPeer(t *testing.T) *Peer {
	port := strconv.Itoa(20000 + rand.IntN(10000))
	return &Peer{t, port, "-s " + peerAddress + " -p " + port}
}

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

// Dial connects to the program as soon as it listens. prepare is called with
// each endpoint before it connects.
func (p *Peer) Dial(prepare func(*endpoint.Endpoint)) *endpoint.Endpoint {
	p.t.Helper()
	end := time.Now().Add(time.Minute)
	for {
		require.True(p.t, time.Now().Before(end), "the server does not listen")
		ep := p.Endpoint(0)
		prepare(ep)
		_, err := ep.Connect(p.t.Context(), rdmacm.ConnParam{})
		if err == nil {
			return ep
		}
		require.NoError(p.t, ep.Close()) // the server does not listen yet
	}
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
	status, stderr := p.run(program, f)
	require.Equal(p.t, "0", strconv.Itoa(status)+stderr, "status and what the program printed to stderr")
}

// Fails is like With, but the program must fail. It returns what the program
// printed to stderr.
func (p *Peer) Fails(program Main, f func()) string {
	p.t.Helper()
	status, stderr := p.run(program, f)
	require.Equal(p.t, 1, status, stderr)
	return stderr
}

// run runs the program while f does its part.
func (p *Peer) run(program Main, f func()) (status int, stderr string) {
	p.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		status, _, stderr = program.Run(p.args)
	}()
	f()
	<-ended
	return status, stderr
}
