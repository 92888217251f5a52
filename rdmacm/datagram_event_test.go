package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/rdmacm"
)

// listeningUD returns an id that listens for requests about datagrams.
func listeningUD(t testing.TB, ip netip.Addr) *udEnd {
	t.Helper()
	e := newIdleUDEnd(t)
	require.NoError(t, e.id.BindAddr(netip.AddrPortFrom(ip, 0)))
	require.NoError(t, e.id.Listen(4))
	return e
}

// requestOf returns the next request of a listener.
func (e *udEnd) requestOf() (*rdmacm.Event, *udEnd) {
	e.t.Helper()
	ev := next(e.t, e.ch, rdmacm.EventConnectRequest)
	require.Same(e.t, e.id, ev.ListenID)
	e.t.Cleanup(func() { require.NoError(e.t, ev.ID.Close()) })
	return ev, &udEnd{end: &end{t: e.t, ch: e.ch, id: ev.ID}}
}

func TestDatagramEvents(t *testing.T) {
	d := needDevice(t)
	for _, ip := range []netip.Addr{d.IPv4, d.IPv6} {
		t.Run(ip.String(), func(t *testing.T) {
			ln, client := listeningUD(t, ip), newIdleUDEnd(t)
			require.Equal(t, rdmacm.PortSpaceUDP, ln.id.PortSpace())
			client.resolve(ln.id.LocalAddr())
			client.makeQP()
			require.NoError(t, client.id.Connect(rdmacm.ConnParam{PrivateData: []byte("who is there?")}))

			request, server := ln.requestOf()
			require.Equal(t, padded([]byte("who is there?"), maxDatagramRequest), request.PrivateData)
			require.Zero(t, request.QPNum, "a request does not say")
			require.Zero(t, request.QKey)
			require.Equal(t, client.id.LocalAddr(), request.ID.RemoteAddr())
			require.Equal(t, ln.id.LocalAddr(), request.ID.LocalAddr())
			require.ErrorContains(t, request.ID.Accept(rdmacm.ConnParam{}), "create a queue pair first")
			server.makeQP()
			require.NoError(t, server.id.Accept(rdmacm.ConnParam{PrivateData: []byte("it's me")}))

			established := next(t, client.ch, rdmacm.EventEstablished)
			require.NoError(t, established.Err())
			require.Equal(t, padded([]byte("it's me"), maxDatagramReply), established.PrivateData)
			require.Equal(t, server.qp.Num(), established.QPNum)
			require.EqualValues(t, cmQKey, established.QKey)
			require.Equal(t, ip, established.Path.DGID.Addr())
			require.Equal(t, d.Port, established.Path.Port)
			require.Zero(t, established.ResponderResources)
			require.Nil(t, established.Value)
			client.sendTo(established, "there you are")
			require.Equal(t, "there you are", server.received())

			_, ok, err := ln.ch.Poll()
			require.NoError(t, err)
			require.False(t, ok, "the accepting end hears no more")
			require.ErrorIs(t, server.id.Accept(rdmacm.ConnParam{}), syscall.EINVAL, "once is enough")
			require.ErrorIs(t, client.id.Connect(rdmacm.ConnParam{}), syscall.EINVAL)
			require.ErrorIs(t, client.id.JoinMulticast(groupIPv4, rdmacm.JoinFull, nil), syscall.EINVAL, "too late")
		})
	}
}

// The statuses with which a peer, or its system, refuses.
func TestDatagramRefusals(t *testing.T) {
	d := needDevice(t)
	ln := listeningUD(t, d.IPv4)
	ask := func() *udEnd {
		client := newIdleUDEnd(t)
		client.resolve(ln.id.LocalAddr())
		require.NoError(t, client.id.Connect(rdmacm.ConnParam{}), "without a queue pair of its own, too")
		return client
	}
	check := func(client *udEnd, status int, reason rdmacm.Reason, data string) {
		t.Helper()
		ev := next(t, client.ch, rdmacm.EventUnreachable)
		require.Equal(t, status, ev.Status)
		require.Equal(t, padded([]byte(data), maxDatagramReply), ev.PrivateData)
		require.Equal(t, &rdmacm.RejectedError{Reason: reason, PrivateData: ev.PrivateData}, ev.Err())
	}
	client := ask()
	request, _ := ln.requestOf()
	require.NoError(t, request.ID.Reject([]byte("not today")))
	check(client, 2, rdmacm.ReasonConsumer, "not today")

	client = ask()
	request, _ = ln.requestOf()
	require.NoError(t, request.ID.Close())
	check(client, 2, rdmacm.ReasonConsumer, "")

	client = newIdleUDEnd(t)
	client.resolve(ln.id.LocalAddr())
	require.NoError(t, ln.id.Close())
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	check(client, 1, rdmacm.ReasonNoListener, "")
}

// An answer that names a queue pair that is not the id's.
func TestDatagramAcceptForAnother(t *testing.T) {
	d := needDevice(t)
	ln, client, service := listeningUD(t, d.IPv4), newIdleUDEnd(t), newUDEnd(t, d.IPv4)
	client.resolve(ln.id.LocalAddr())
	client.makeQP()
	require.NoError(t, client.id.Connect(rdmacm.ConnParam{}))
	request, _ := ln.requestOf()
	require.NoError(t, request.ID.Accept(rdmacm.ConnParam{QPNum: service.qp.Num()}))
	require.NoError(t, request.ID.Close(), "it has no more to do")
	established := next(t, client.ch, rdmacm.EventEstablished)
	require.Equal(t, service.qp.Num(), established.QPNum)
	client.sendTo(established, "hello, service")
	require.Equal(t, "hello, service", service.received())
}

// Failures that the guest cannot make, or only in a minute.
func TestDatagramEventErrors(t *testing.T) {
	timeout := &rdmacm.Event{Type: rdmacm.EventUnreachable, Status: -int(syscall.ETIMEDOUT)}
	require.EqualError(t, timeout.Err(), "peer unreachable: connection timed out")
	require.ErrorIs(t, timeout.Err(), syscall.ETIMEDOUT)
	for status, want := range map[int]string{
		1: "connection rejected: nobody listens on the port", 2: "connection rejected: refused by the peer's program",
		3: "connection rejected: no queue pair available", 4: "connection rejected: redirected to another port",
		5: "connection rejected: unsupported class version",
	} {
		err := (&rdmacm.Event{Type: rdmacm.EventUnreachable, Status: status, PrivateData: []byte("why")}).Err()
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, "why", string(err.(*rdmacm.RejectedError).PrivateData))
	}
	unknown := (&rdmacm.Event{Type: rdmacm.EventUnreachable, Status: 77}).Err()
	require.EqualError(t, unknown, "peer unreachable: reason 77")
	require.ErrorIs(t, unknown, syscall.EHOSTUNREACH)

	d := needDevice(t)
	client, _ := datagrams(t, d.IPv4, nil, nil)
	for _, later := range []rdmacm.EventType{rdmacm.EventUnreachable, rdmacm.EventAddrChange, rdmacm.EventEstablished} {
		rdmacm.InjectDatagram(client, &rdmacm.Event{Type: later, Status: -int(syscall.ETIMEDOUT)})
	}
	require.NoError(t, client.Err(), "these end nothing")
	pending, err := client.PostRecv()
	require.NoError(t, err)
	rdmacm.InjectDatagram(client, &rdmacm.Event{Type: rdmacm.EventDeviceRemoval})
	<-client.Done()
	_, err = pending.Wait(bounded(t))
	require.ErrorIs(t, err, syscall.ENODEV, "why it was flushed")
	require.ErrorIs(t, client.Send(bounded(t)), syscall.ENODEV)
}
