package rdmacm_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// within returns a context that ends with the test or after a while.
func within(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

// asked is what a connection request looks like on both ends.
type asked struct {
	param              rdmacm.ConnParam
	ln, client, server *end
}

// ask sends a request, and checks every field of the event that it becomes. It
// names a queue pair that there is not, which nobody looks for.
func ask(t testing.TB, ip netip.Addr, p rdmacm.ConnParam) asked {
	t.Helper()
	ln, client := listening(t, ip), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, client.id.Connect(p))
	ev := next(t, ln.ch, rdmacm.EventConnectRequest)
	require.NotSame(t, ln.id, ev.ID)
	t.Cleanup(func() { require.NoError(t, ev.ID.Close()) })
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventConnectRequest, ID: ev.ID, ListenID: ln.id,
		PrivateData: padded(p.PrivateData, maxRequestData), QPNum: p.QPNum,
		ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources, // as the peer has them
		FlowControl: p.FlowControl, RetryCount: p.RetryCount, RNRRetryCount: p.PeerRNRRetryCount, SRQ: p.SRQ,
	}, ev)
	require.NoError(t, ev.Err())
	return asked{p, ln, client, &end{t: t, ch: ln.ch, id: ev.ID}}
}

// up answers what ask has asked, until both ends have the connection, and
// checks every field of the events.
func (a asked) up(t testing.TB) {
	t.Helper()
	answer := rdmacm.ConnParam{
		PrivateData: []byte("yes"), ResponderResources: 5, InitiatorDepth: 3, FlowControl: true, PeerRNRRetryCount: 6, QPNum: newQP(), SRQ: true,
	}
	require.NoError(t, a.server.id.Accept(answer))
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventConnectResponse, ID: a.client.id, PrivateData: padded(answer.PrivateData, maxReplyData), QPNum: answer.QPNum,
		ResponderResources: answer.InitiatorDepth, InitiatorDepth: answer.ResponderResources,
		FlowControl: true, RNRRetryCount: 6, SRQ: true,
	}, next(t, a.client.ch, rdmacm.EventConnectResponse))
	require.NoError(t, a.client.id.Establish())
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventEstablished, ID: a.server.id}, next(t, a.server.ch, rdmacm.EventEstablished))
}

var lastQP atomic.Uint32

// newQP returns the number of a queue pair that there is not. One that was
// connected a moment ago would be taken for stale.
func newQP() uint32 { return 0x800000 + lastQP.Add(1) }

func plainRequest() rdmacm.ConnParam {
	return rdmacm.ConnParam{
		PrivateData: []byte("please"), ResponderResources: 2, InitiatorDepth: 4, RetryCount: 5, PeerRNRRetryCount: 7,
		QPNum: newQP(),
	}
}

// Without queue pairs of their own the ids' ends say all that they are told.
func TestEventsOfHandshake(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	for _, tt := range []struct {
		name string
		flow bool
		srq  bool
	}{{name: "plain"}, {"flow control", true, false}, {"shared receives", false, true}} {
		t.Run(tt.name, func(t *testing.T) {
			p := plainRequest()
			p.FlowControl, p.SRQ = tt.flow, tt.srq
			ask(t, d.IPv4, p).up(t)
		})
	}
}

// With queue pairs, librdmacm completes the handshake when the event is read.
func TestEventEstablishedAtBothEnds(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{ResponderResources: 2, InitiatorDepth: 4}))
	server := &end{t: t, ch: ln.ch, id: next(t, ln.ch, rdmacm.EventConnectRequest).ID}
	t.Cleanup(func() { require.NoError(t, server.id.Close()) })
	server.createQP()
	require.NoError(t, server.id.Accept(rdmacm.ConnParam{PrivateData: []byte("yes"), ResponderResources: 4, InitiatorDepth: 2}))
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventEstablished, ID: client.id, PrivateData: padded([]byte("yes"), maxReplyData),
		QPNum: server.qp.Num(), ResponderResources: 2, InitiatorDepth: 4,
	}, next(t, client.ch, rdmacm.EventEstablished))
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventEstablished, ID: server.id}, next(t, server.ch, rdmacm.EventEstablished))
}

// The queue pair is in no state to be connected when the answer comes.
// librdmacm loses the errno.
func TestEventConnectError(t *testing.T) {
	d := needDevice(t)
	noKernelLeaks(t, d)
	ln, client := listening(t, d.IPv4), newEnd(t)
	client.resolve(ln.id.LocalAddr())
	client.createQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	server := next(t, ln.ch, rdmacm.EventConnectRequest).ID
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	require.NoError(t, client.qp.SetError())
	require.NoError(t, server.Accept(rdmacm.ConnParam{QPNum: newQP()}))
	ev := next(t, client.ch, rdmacm.EventConnectError)
	requireEvent(t, rdmacm.Event{Type: rdmacm.EventConnectError, ID: client.id, Status: -1}, ev)
	require.ErrorIs(t, ev.Err(), syscall.EIO)
	require.EqualError(t, ev.Err(), "connection failed")

	// The peer hears of it when the id is given up.
	require.NoError(t, client.qp.Close())
	require.NoError(t, client.id.Close())
	requireEvent(t, rdmacm.Event{
		Type: rdmacm.EventRejected, ID: server, Status: int(rdmacm.ReasonConsumer), PrivateData: make([]byte, maxRejectData),
	}, next(t, ln.ch, rdmacm.EventRejected))
}
