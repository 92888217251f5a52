// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// watch makes a network keep all messages that are sent from now on. They
// arrive, unless lost names their kind.
func watch(n *network, lost ...wire.Attribute) *[]wire.Message {
	sent := new([]wire.Message)
	n.fault = func(m wire.Message) []time.Duration {
		*sent = append(*sent, m)
		if slices.Contains(lost, m.Attribute()) {
			return nil
		}
		return []time.Duration{latency}
	}
	return sent
}

// only returns the messages of a type.
func only[M wire.Message](sent *[]wire.Message) (found []M) {
	for _, m := range *sent {
		if m, ok := m.(M); ok {
			found = append(found, m)
		}
	}
	return found
}

// TestTransactions has answers repeat the transaction ID of what they answer,
// which each side chooses for its own.
func TestTransactions(t *testing.T) {
	for name, ends := range map[string]func(c, s *program, id *cm.ID){
		"by the client": func(c, _ *program, id *cm.ID) { require.NoError(t, id.Disconnect(c.net.now)) },
		"by the server": func(_, s *program, _ *cm.ID) {
			require.NoError(t, s.last(established).ID.Disconnect(s.net.now))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, client, server := pair(t)
			server.listen(tcp, serverAddr)
			accepting(server)
			ending(client)
			ending(server)
			sent := watch(n)
			id := connect(client)
			n.run(soon)
			ends(client, server, id)
			n.run(soon)
			req, rep, rtu := only[*wire.REQ](sent)[0], only[*wire.REP](sent)[0], only[*wire.RTU](sent)[0]
			dreq, drep := only[*wire.DREQ](sent)[0], only[*wire.DREP](sent)[0]
			require.NotZero(t, req.TID)
			require.Equal(t, req.TID, rep.TID)
			require.Equal(t, req.TID, rtu.TID)
			require.Equal(t, uint64(dreq.LocalCommID), dreq.TID)
			require.Equal(t, dreq.TID, drep.TID)
		})
	}
	t.Run("service", func(t *testing.T) {
		n, client, server := pair(t)
		server.listen(udp, serverAddr)
		accepting(server)
		sent := watch(n)
		require.NoError(t, client.resolve(udp, serverAddr).Connect(n.now, param(3, "")))
		n.run(soon)
		req, rep := only[*wire.SIDRReq](sent)[0], only[*wire.SIDRRep](sent)[0]
		require.NotZero(t, req.TID)
		require.Equal(t, req.TID, rep.TID)
		require.Equal(t, req.ServiceID, rep.ServiceID)
		client.last(established)
	})
}

// TestWhatIsRejected has rejections say what they answer, and one after a
// time-out name the sender by its GUID.
func TestWhatIsRejected(t *testing.T) {
	for name, test := range map[string]struct {
		start func(c, s *program)
		want  wire.REJ // without what tells connections apart
		guid  bool
	}{
		"a request": {func(_, s *program) {
			s.on[connRequest] = func(e *cm.Event) { require.NoError(t, e.ID.Reject(s.net.now, 0, nil)) }
		}, wire.REJ{Rejected: wire.AnswersREQ, Reason: wire.RejectConsumer}, false},
		"an acceptance": {func(c, s *program) {
			accepting(s)
			c.on[connResponse] = func(e *cm.Event) { require.NoError(t, e.ID.Reject(c.net.now, 0, nil)) }
		}, wire.REJ{Rejected: wire.AnswersREP, Reason: wire.RejectConsumer}, false},
		"nothing": {func(c, _ *program) {
			c.net.after(soon, func() { c.last(routeResolved).ID.Destroy(c.net.now) })
		}, wire.REJ{Rejected: wire.AnswersOther, Reason: wire.RejectTimeout}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n, client, server := pair(t)
			server.listen(tcp, serverAddr)
			sent := watch(n)
			id := client.resolve(tcp, serverAddr)
			test.start(client, server)
			require.NoError(t, id.Connect(n.now, param(0x10001, "")))
			n.run(2 * soon)
			rejections := only[*wire.REJ](sent)
			require.Len(t, rejections, 1)
			rej := *rejections[0]
			if test.guid {
				require.EqualValues(t, 8, rej.InfoLength)
				require.Equal(t, uint64(1)<<32, binary.BigEndian.Uint64(rej.Info[:]))
			} else {
				require.Zero(t, rej.InfoLength)
				require.Zero(t, rej.Info)
			}
			require.Equal(t, []any{test.want.Rejected, test.want.Reason}, []any{rej.Rejected, rej.Reason})
		})
	}
}

// TestMostPrivateData sends as much as each message carries.
func TestMostPrivateData(t *testing.T) {
	data := func(n int) string { return strings.Repeat("x", n) }
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	server.listen(udp, serverAddr)
	asked := func(space librdmacm.PortSpace, answer func(id *cm.ID) error) *cm.Event {
		server.on[connRequest] = func(e *cm.Event) { require.NoError(t, answer(e.ID)) }
		require.NoError(t, client.resolve(space, serverAddr).Connect(n.now, param(3+uint32(len(client.log)), "")))
		n.run(soon)
		return client.events[len(client.events)-1]
	}
	e := asked(tcp, func(id *cm.ID) error { return id.Accept(n.now, param(4, data(196))) })
	require.Equal(t, connResponse, e.Type)
	require.Equal(t, data(196), string(e.Conn.PrivateData))
	e = asked(tcp, func(id *cm.ID) error { return id.Reject(n.now, 0, []byte(data(148))) })
	require.Equal(t, rejected, e.Type)
	require.Equal(t, data(148), string(e.Conn.PrivateData))
	e = asked(udp, func(id *cm.ID) error { return id.Accept(n.now, param(4, data(136))) })
	require.Equal(t, established, e.Type)
	require.Equal(t, data(136), string(e.UD.PrivateData))
}

// TestNumbersAreGivenBack looks at what a manager keeps when an exchange has
// failed, before the IDs are destroyed.
func TestNumbersAreGivenBack(t *testing.T) {
	const none = "0 connections, 0 numbers, 0 queue pairs, 0 services, 0 timers"
	for name, test := range map[string]struct {
		lost  []wire.Attribute
		start func(c, s *program)
		after time.Duration
		left  string // of the client
	}{
		"no answer": {lost: []wire.Attribute{wire.AttrREQ}, start: func(c, _ *program) { connect(c) }, after: later * 10, left: none},
		"no answer to a service": {
			lost: []wire.Attribute{wire.AttrSIDRReq},
			start: func(c, _ *program) {
				require.NoError(c.net.t, c.resolve(udp, serverAddr).Connect(c.net.now, param(3, "")))
			},
			after: later * 10, left: none,
		},
		"refused": {
			start: func(c, s *program) {
				s.on[connRequest] = func(e *cm.Event) { require.NoError(s.net.t, e.ID.Reject(s.net.now, 0, nil)) }
				connect(c)
			}, after: soon, left: none,
		},
		"no agreement to the end": {
			lost: []wire.Attribute{wire.AttrDREQ},
			start: func(c, s *program) {
				accepting(s)
				id := connect(c)
				c.net.after(soon, func() { require.NoError(c.net.t, id.Disconnect(c.net.now)) })
			},
			after: soon + 16*6144*time.Millisecond + 10*latency,
			left:  "1 connections, 1 numbers, 0 queue pairs, 0 services, 1 timers",
		},
		"the peer's process ends while it is asked": {
			start: func(c, s *program) {
				connect(c) // and the server says that it takes longer
				c.net.after(later, func() { c.NodeGone(c.net.now, s.number) })
			}, after: later, left: none,
		},
		"the peer's process ends before it disconnects": {
			start: func(c, s *program) {
				accepting(s)
				connect(c)
				s.on[established] = func(e *cm.Event) { require.NoError(s.net.t, e.ID.Disconnect(s.net.now)) }
				c.net.after(soon, func() { c.NodeGone(c.net.now, s.number) })
			},
			after: soon,
			left:  "1 connections, 1 numbers, 0 queue pairs, 0 services, 1 timers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			n, client, server := pair(t)
			server.listen(tcp, serverAddr)
			server.listen(udp, serverAddr)
			watch(n, test.lost...)
			test.start(client, server)
			n.run(test.after)
			require.Equal(t, "1 IDs, 1 ports, 1 claims, "+test.left, client.Left())
			n.run(time.Hour)
			require.Equal(t, "1 IDs, 1 ports, 1 claims, "+none, client.Left())
			if test.left != none {
				client.last(timewaitExit)
			}
		})
	}
}

// TestStaleWaits has a client that is told that its queue pair belonged to
// another connection: packets of that may still be under way, so its numbers
// are kept for a while.
func TestStaleWaits(t *testing.T) {
	for reason, left := range map[wire.RejectReason]string{
		wire.RejectStale:    "1 connections, 0 numbers, 0 queue pairs, 0 services, 1 timers",
		wire.RejectConsumer: "0 connections, 0 numbers, 0 queue pairs, 0 services, 0 timers",
	} {
		n, client, _ := pair(t)
		sent := watch(n, wire.AttrREQ)
		connect(client)
		data := wire.MAD(&wire.REJ{RemoteCommID: only[*wire.REQ](sent)[0].LocalCommID, Rejected: wire.AnswersREQ, Reason: reason})
		client.Receive(n.now, fromServer(data[:]))
		n.run(0)
		require.Equal(t, int(reason), client.last(rejected).Status)
		require.Equal(t, "1 IDs, 1 ports, 1 claims, "+left, client.Left())
	}
}

// TestQueuePairIsFreeBeforeTheEnd has a peer that has disconnected use its
// queue pair again, before the program here has agreed.
func TestQueuePairIsFreeBeforeTheEnd(t *testing.T) {
	_, server, ask := asked(t)
	accepting(server)
	rep := one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	require.Empty(t, ask(&wire.DREQ{LocalCommID: 77, RemoteCommID: rep.LocalCommID, RemoteQPN: rep.LocalQPN}))
	server.last(disconnected)
	one[*wire.REP](t, ask(requestTo(5, 78, 0x99)))
}

// TestOtherNumbersOfThePeer gives messages of the right peer that name another
// connection of it, or come in the wrong state.
func TestOtherNumbersOfThePeer(t *testing.T) {
	_, server, ask := asked(t)
	accepting(server)
	rep := one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 78, RemoteCommID: rep.LocalCommID}))
	require.NotContains(t, server.log, "ESTABLISHED")
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	one[*wire.DREP](t, ask(&wire.DREQ{LocalCommID: 78, RemoteCommID: rep.LocalCommID, RemoteQPN: rep.LocalQPN}))
	require.Empty(t, ask(&wire.REJ{LocalCommID: 78, RemoteCommID: rep.LocalCommID, Reason: wire.RejectConsumer}))
	require.Empty(t, ask(&wire.SIDRRep{RequestID: rep.LocalCommID, QPN: 4, QKey: 5}))
	server.last(established)

	n, client, _ := pair(t)
	sent := watch(n, wire.AttrREQ)
	connect(client)
	data := wire.MAD(&wire.SIDRRep{RequestID: only[*wire.REQ](sent)[0].LocalCommID, QPN: 4, QKey: 5})
	client.Receive(n.now, fromServer(data[:]))
	n.run(0)
	client.last(routeResolved)
	require.Contains(t, client.Left(), "1 connections")
}

// TestWildcardListenerChecksTheHeader has a listener at all addresses ignore
// requests whose header it cannot believe.
func TestWildcardListenerChecksTheHeader(t *testing.T) {
	for name, spoil := range map[string]func(private []byte){
		"version":    func(private []byte) { private[0] = 1 },
		"no address": func(private []byte) { private[1] = 0x50 },
		"another":    func(private []byte) { private[19]++ },
	} {
		t.Run(name, func(t *testing.T) {
			_, server, ask := asked(t)
			server.listen(tcp, "[::]:7199")
			req := requestFrom(clientIP, 5, 77, 0x99, 7199)
			spoil(req.PrivateData[:])
			require.Equal(t, wire.RejectConsumer, one[*wire.REJ](t, ask(req)).Reason)
			require.Empty(t, server.log)
			one := requestFrom(clientIP, 5, 77, 0x99, 7199)
			require.Empty(t, ask(one))
			server.last(connRequest)
		})
	}
}

// TestListenerOfAnotherDevice is not found by requests to this one.
func TestListenerOfAnotherDevice(t *testing.T) {
	_, server, ask := asked(t)
	other := netip.MustParseAddr("10.0.0.3")
	port := server.ports[other]
	port.Device = "another device"
	server.ports[other] = port
	server.listen(tcp, "10.0.0.3:7199")
	require.Equal(t, wire.RejectServiceID, one[*wire.REJ](t, ask(requestFrom(clientIP, 5, 77, 0x99, 7199))).Reason)
	server.listen(tcp, "10.0.0.2:7199")
	require.Empty(t, ask(requestFrom(clientIP, 5, 77, 0x99, 7199)))
	server.last(connRequest)
}

// TestServicesOfConnections asks a listener for connections for a datagram
// service, in a port space that has both.
func TestServicesOfConnections(t *testing.T) {
	_, server, ask := asked(t)
	listener := server.id(librdmacm.RDMA_PS_IB)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort("10.0.0.2:7199")))
	require.NoError(t, listener.Listen(0))
	req := &wire.SIDRReq{RequestID: 7, ServiceID: wire.ServiceID(uint16(librdmacm.RDMA_PS_IB), 7199)}
	putHeader(req.PrivateData[:], clientIP, serverIP)
	require.Equal(t, wire.SIDRRejected, one[*wire.SIDRRep](t, ask(req)).Status)
	req.ServiceID++
	require.Equal(t, wire.SIDRNotSupported, one[*wire.SIDRRep](t, ask(req)).Status)
	require.Empty(t, server.log)
}

// TestMessageFromNowhere drops a message without a source.
func TestMessageFromNowhere(t *testing.T) {
	n, server, ask := asked(t)
	data := wire.MAD(requestTo(5, 77, 0x99))
	server.Receive(n.now, cm.MAD{Node: 1, Dst: serverIP, Data: data[:]})
	n.run(0)
	require.Empty(t, server.log)
	require.Empty(t, n.sent)
	require.Empty(t, ask(requestTo(5, 77, 0x99)))
	server.last(connRequest)
}

// TestQKeys takes answers with a Q_Key.
func TestQKeys(t *testing.T) {
	for name, test := range map[string]struct {
		own  bool // the ID has the default one
		qkey uint32
		want librdmacm.CmEventType
	}{
		"none":           {false, 0, addrError},
		"the peer's":     {false, 5, established},
		"the same":       {true, librdmacm.RDMA_UDP_QKEY, established},
		"another":        {true, 5, addrError},
		"none, with own": {true, 0, addrError},
	} {
		t.Run(name, func(t *testing.T) {
			n, client, _ := pair(t)
			sent := watch(n, wire.AttrSIDRReq)
			id := client.resolve(udp, serverAddr)
			if test.own {
				_, _, err := id.InitQPAttr(libibverbs.IBV_QPS_INIT)
				require.NoError(t, err)
			}
			require.NoError(t, id.Connect(n.now, param(3, "")))
			data := wire.MAD(&wire.SIDRRep{RequestID: only[*wire.SIDRReq](sent)[0].RequestID, QPN: 4, QKey: test.qkey})
			client.Receive(n.now, fromServer(data[:]))
			n.run(0)
			client.last(test.want)
			if test.want == established {
				attr, _, err := id.InitQPAttr(libibverbs.IBV_QPS_INIT)
				require.NoError(t, err)
				require.Equal(t, test.qkey, attr.Qkey)
			}
		})
	}
}

// TestQPAttrBefore asks for attributes before there is a connection, and of
// datagrams.
func TestQPAttrBefore(t *testing.T) {
	const (
		base   = libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_PKEY_INDEX | libibverbs.IBV_QP_PORT
		access = base | libibverbs.IBV_QP_ACCESS_FLAGS
		qkey   = base | libibverbs.IBV_QP_QKEY
	)
	_, client, _ := pair(t)
	bound, datagrams := client.id(tcp), client.listen(udp, "10.0.0.1:7199")
	require.NoError(t, bound.Bind(netip.MustParseAddrPort("10.0.0.1:7198")))
	for _, test := range []struct {
		id   *cm.ID
		to   libibverbs.QpState
		mask libibverbs.QpAttrMask
	}{
		{bound, libibverbs.IBV_QPS_INIT, access},
		{bound, libibverbs.IBV_QPS_ERR, access},
		{datagrams, libibverbs.IBV_QPS_INIT, qkey},
		{datagrams, libibverbs.IBV_QPS_ERR, qkey},
	} {
		attr, mask, err := test.id.InitQPAttr(test.to)
		require.NoError(t, err)
		require.Equal(t, test.mask, mask)
		require.EqualValues(t, 1, attr.PortNum)
		require.Equal(t, test.to, attr.QpState)
		_, _, err = test.id.InitQPAttr(libibverbs.IBV_QPS_ERR + 1)
		require.ErrorIs(t, err, syscall.EINVAL)
	}
}

// TestQPAttrWhileConnecting lets the peer read only if the program has said
// that it may.
func TestQPAttrWhileConnecting(t *testing.T) {
	for _, depth := range []uint8{0, 1} {
		n, client, server := pair(t)
		server.listen(tcp, serverAddr)
		id := client.resolve(tcp, serverAddr)
		require.NoError(t, id.Connect(n.now, cm.ConnParam{ResponderResources: depth, InitiatorDepth: depth, QPNum: 0x10001}))
		n.run(soon)
		want := libibverbs.IBV_ACCESS_REMOTE_WRITE
		if depth > 0 {
			want |= libibverbs.IBV_ACCESS_REMOTE_READ | libibverbs.IBV_ACCESS_REMOTE_ATOMIC | libibverbs.IBV_ACCESS_FLUSH_GLOBAL
		}
		for _, end := range []*cm.ID{id, server.last(connRequest).ID} {
			attr, _, err := end.InitQPAttr(libibverbs.IBV_QPS_INIT)
			require.NoError(t, err)
			require.EqualValues(t, want, attr.QpAccessFlags)
			for _, to := range []libibverbs.QpState{libibverbs.IBV_QPS_SQD, libibverbs.IBV_QPS_ERR, libibverbs.IBV_QPS_RESET} {
				_, _, err = end.InitQPAttr(to)
				require.ErrorIs(t, err, syscall.EINVAL)
			}
		}
	}
}

// TestSetPath gives an ID a path in place of asking for one.
func TestSetPath(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	path := cm.Path{
		SGID: wire.GIDOf(clientIP), DGID: wire.GIDOf(serverIP), HopLimit: 7, FlowLabel: 99, MTU: libibverbs.IBV_MTU_512, PacketLifeTime: 3,
	}
	id := client.id(tcp)
	require.ErrorIs(t, id.SetPath(path), syscall.EINVAL, "no address yet")
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, id.SetPath(path))
	got, ok := id.Path()
	require.True(t, ok)
	require.Equal(t, path, got)
	n.run(0)
	require.Same(t, id, client.last(routeResolved).ID)
	require.ErrorIs(t, id.SetPath(path), syscall.EINVAL, "twice")
	removed := client.id(tcp)
	require.NoError(t, removed.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	removed.Destroy(n.now)
	require.ErrorIs(t, removed.SetPath(path), syscall.ENXIO)
	require.NoError(t, id.Connect(n.now, param(0x10001, "")))
	n.run(soon)
	back, _ := server.last(connRequest).ID.Path()
	require.Equal(t, []any{path.MTU, path.FlowLabel, path.HopLimit}, []any{back.MTU, back.FlowLabel, back.HopLimit})
}

// TestReport queues an event that is none of the manager's.
func TestReport(t *testing.T) {
	n, client, _ := pair(t)
	id := client.id(tcp)
	require.NoError(t, id.Bind(netip.MustParseAddrPort("10.0.0.1:7")))
	require.NoError(t, id.Report(librdmacm.RDMA_CM_EVENT_ADDRINFO_ERROR, -3))
	n.run(0)
	e := client.last(librdmacm.RDMA_CM_EVENT_ADDRINFO_ERROR)
	require.Same(t, id, e.ID)
	require.Equal(t, -3, e.Status)
	client.RemoveDevice(n.now, "device1")
	require.ErrorIs(t, id.Report(librdmacm.RDMA_CM_EVENT_ADDRINFO_ERROR, -3), syscall.ENXIO)
}

// TestOldestFirst has many IDs hear of what concerns all in the order in which
// they were made, and connections in which they were begun.
func TestOldestFirst(t *testing.T) {
	const many = 20
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	accepting(server)
	var ids []*cm.ID
	for range many {
		ids = append(ids, client.resolve(tcp, serverAddr))
	}
	begun := slices.Clone(ids)
	slices.Reverse(begun)
	client.on[connResponse] = func(e *cm.Event) { require.NoError(t, e.ID.Establish(n.now)) }
	for i, id := range begun {
		require.NoError(t, id.Connect(n.now, param(100+uint32(i), "")))
	}
	server.on[connRequest] = func(e *cm.Event) { require.NoError(t, e.ID.Accept(n.now, param(200+e.Conn.QPNum, ""))) }
	n.run(soon)
	var forward, backward []int
	for i := range many {
		forward, backward = append(forward, i), append(backward, many-1-i)
	}
	order := func(do func()) (order []int) {
		client.events = nil
		do()
		n.run(0)
		for _, e := range client.events {
			order = append(order, slices.Index(ids, e.ID))
		}
		return order
	}
	require.Equal(t, forward, order(func() { client.ChangeAddress("device1") }))
	require.Equal(t, backward, order(func() { client.NodeGone(n.now, server.number) }))
	require.Equal(t, backward, order(func() { n.run(time.Minute) }), "their time waits end together")
	require.Equal(t, forward, order(func() { client.RemoveDevice(n.now, "device1") }))
	require.Empty(t, order(func() { client.RemoveDevice(n.now, "device1") }), "once")
	require.Empty(t, order(func() { client.ChangeAddress("device1") }), "which they have no more")
}

// TestChannelIsToldOfEventsOnly counts what a channel says: nothing, if it has
// lost nothing.
func TestChannelIsToldOfEventsOnly(t *testing.T) {
	_, client, _ := pair(t)
	var told []int
	channel := client.NewChannel(func(events int) { told = append(told, events) })
	id, err := client.NewID(channel, udp, 0, nil)
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, id.JoinMulticast(netip.MustParseAddr("224.0.0.5"), 0, nil))
	require.Equal(t, []int{1, 1}, told)
	_, err = id.LeaveMulticast(netip.MustParseAddr("224.0.0.5"))
	require.NoError(t, err)
	require.Equal(t, []int{1, 1, -1}, told)
	require.Empty(t, client.groups, "it has left")
	id.Destroy(0)
	require.Equal(t, []int{1, 1, -1, -1}, told)
	other, err := client.NewID(channel, udp, 0, nil)
	require.NoError(t, err)
	other.Destroy(0)
	require.Equal(t, []int{1, 1, -1, -1}, told)
}

// TestWhenToJoin joins a group from a bound ID and one with a peer, and from no
// other.
func TestWhenToJoin(t *testing.T) {
	_, client, _ := pair(t)
	group := netip.MustParseAddr("224.0.0.5")
	idle, bound, resolved, routed := client.id(udp), client.id(udp), client.id(udp), client.resolve(udp, serverAddr)
	require.NoError(t, bound.Bind(netip.MustParseAddrPort("10.0.0.1:7")))
	require.NoError(t, resolved.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	for _, id := range []*cm.ID{bound, resolved} {
		require.NoError(t, id.JoinMulticast(group, 0, nil))
	}
	for _, id := range []*cm.ID{idle, routed} {
		require.ErrorIs(t, id.JoinMulticast(group, 0, nil), syscall.EINVAL)
	}
}

// TestClaims looks at what a node has made its own.
func TestClaims(t *testing.T) {
	for name, test := range map[string]struct {
		addr   string
		afOnly bool
		v6Only bool
	}{
		"IPv4":            {"0.0.0.0:7", false, false},
		"IPv4, afonly":    {"0.0.0.0:7", true, false},
		"IPv6":            {"[::]:7", false, false},
		"IPv6, afonly":    {"[::]:7", true, true},
		"an IPv6 address": {"[2001:db8::1]:7", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, client, _ := pair(t)
			id := client.id(tcp)
			if test.afOnly {
				require.NoError(t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_AFONLY, binary.NativeEndian.AppendUint32(nil, 1)))
			}
			addr := netip.MustParseAddrPort(test.addr)
			require.NoError(t, id.Bind(addr))
			require.Equal(t, map[cm.Claim]bool{{Space: tcp, Addr: addr, V6Only: test.v6Only}: true}, client.claims)
		})
	}
}

// TestBothFamilies has a listener for both families keep a port from one for
// IPv4.
func TestBothFamilies(t *testing.T) {
	_, client, _ := pair(t)
	require.NoError(t, client.id(tcp).Bind(netip.MustParseAddrPort("[::]:7")))
	require.ErrorIs(t, client.id(tcp).Bind(netip.MustParseAddrPort("0.0.0.0:7")), syscall.EADDRNOTAVAIL)
}

// TestClientsHavePortsOfTheirOwn resolves addresses on a host whose random
// numbers repeat themselves.
func TestClientsHavePortsOfTheirOwn(t *testing.T) {
	n := newNetwork(t)
	host := n.node(1, "10.0.0.1")
	m := cm.New(cm.Config{Host: host, GUID: 1, Random: func() uint32 { return 5 }})
	ports := map[uint16]bool{}
	for range 3 {
		id, err := m.NewID(m.NewChannel(func(int) {}), tcp, 0, nil)
		require.NoError(t, err)
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7")))
		ports[id.LocalAddr().Port()] = true
	}
	require.Len(t, ports, 3)
}

// TestLinkLocalIPv4 needs no zone.
func TestLinkLocalIPv4(t *testing.T) {
	n := newNetwork(t)
	client := n.node(1, "169.254.1.1").program("client")
	require.NoError(t, client.id(tcp).Bind(netip.MustParseAddrPort("169.254.1.1:7")))
	require.NoError(t, client.id(tcp).ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("169.254.1.1:7")))
}

// TestAckTimeoutOfZero leaves the time of packets as it is.
func TestAckTimeoutOfZero(t *testing.T) {
	for code, want := range map[uint8]uint8{0: 18, 1: 0, 20: 19} {
		_, client, _ := pair(t)
		id := client.id(tcp)
		require.NoError(t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{code}))
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
		require.NoError(t, id.ResolveRoute(time.Second))
		path, _ := id.Path()
		require.Equal(t, want, path.PacketLifeTime, "code %d", code)
	}
}

// TestSettleOfOtherSpaces lets programs of another port space ask for more than
// the device can do.
func TestSettleOfOtherSpaces(t *testing.T) {
	_, client, _ := pair(t)
	for space, want := range map[librdmacm.PortSpace]error{tcp: syscall.EINVAL, librdmacm.RDMA_PS_IB: nil} {
		id := client.resolve(space, serverAddr)
		require.Equal(t, want, id.Settle(&cm.ConnParam{ResponderResources: 129}))
		require.Equal(t, want, id.Settle(&cm.ConnParam{InitiatorDepth: 129}))
	}
}

// TestMostBacklog has no listener queue more requests than Linux's.
func TestMostBacklog(t *testing.T) {
	n, server, _ := asked(t)
	listener := server.id(tcp)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort("10.0.0.2:7199")))
	require.NoError(t, listener.Listen(5000))
	quiet := server.NewChannel(func(int) {})
	require.NoError(t, listener.Migrate(quiet))
	for i := range uint32(1100) {
		data := wire.MAD(requestFrom(clientIP, 5, 1+i, 1+i, 7199))
		server.Receive(n.now, cm.MAD{Node: 1, Src: clientIP, Dst: serverIP, Data: data[:]})
	}
	require.Equal(t, 1024, quiet.Len())
}

// TestBacklogOfOneOfMany counts requests of one listener alone where its
// channel has other events, too: of another listener, and its own that are no
// requests.
func TestBacklogOfOneOfMany(t *testing.T) {
	const backlog = 2
	n, server, _ := asked(t)
	quiet := server.NewChannel(func(int) {})
	var listeners []*cm.ID
	for _, addr := range []string{"10.0.0.2:7198", "10.0.0.2:7199"} {
		id := server.id(tcp)
		require.NoError(t, id.Bind(netip.MustParseAddrPort(addr)))
		require.NoError(t, id.Listen(backlog))
		require.NoError(t, id.Migrate(quiet))
		listeners = append(listeners, id)
	}
	number := uint32(0)
	ask := func(src netip.Addr, port uint16) {
		number++
		data := wire.MAD(requestFrom(src, 5, number, number, port))
		server.Receive(n.now, cm.MAD{Node: 1, Src: src, Dst: serverIP, Data: data[:]})
	}
	for range 3 {
		ask(attackerIP, 7198)
		ask(attackerIP, 7199)
		server.ChangeAddress("device2")
	}
	for range 3 {
		ask(clientIP, 7198)
	}
	got := map[*cm.ID][]netip.Addr{}
	for e := quiet.Next(); e != nil; e = quiet.Next() {
		if e.Type == connRequest {
			got[e.Listen] = append(got[e.Listen], e.ID.PeerAddr().Addr())
		}
	}
	require.Equal(t, map[*cm.ID][]netip.Addr{
		listeners[0]: {attackerIP, clientIP},
		listeners[1]: {attackerIP, attackerIP},
	}, got)
}

// TestManyTimers has connections wait for times in any order.
func TestManyTimers(t *testing.T) {
	n, client, _ := pair(t)
	watch(n, wire.AttrREQ)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range uint32(50) {
		n.after(time.Duration(r.IntN(1000))*time.Millisecond, func() {
			id := client.resolve(tcp, serverAddr)
			id.Context = n.now
			require.NoError(t, id.Connect(n.now, param(1+i, "")))
		})
	}
	n.run(time.Second)
	client.events = nil
	var last time.Duration
	client.on[unreachable] = func(e *cm.Event) {
		begun := e.ID.Context.(time.Duration)
		require.GreaterOrEqual(t, begun, last, "one that has begun later is over before")
		last = begun
	}
	n.settle()
	require.Len(t, client.events, 50)
}

// TestRequestsForNobodysAddress refuses what is sent to an address that the
// node does not have.
func TestRequestsForNobodysAddress(t *testing.T) {
	n, server, _ := asked(t)
	server.listen(tcp, "[::]:7199")
	sent := watch(n)
	req := requestFrom(clientIP, 5, 77, 0x99, 7199)
	data := wire.MAD(req)
	server.Receive(n.now, cm.MAD{Node: 1, Src: clientIP, Dst: netip.MustParseAddr("10.0.0.77"), Data: data[:]})
	require.Equal(t, wire.RejectServiceID, one[*wire.REJ](t, *sent).Reason)
}

// TestMigrateToTheSame changes nothing.
func TestMigrateToTheSame(t *testing.T) {
	_, client, _ := pair(t)
	told := 0
	channel := client.NewChannel(func(int) { told++ })
	var ids []*cm.ID
	for range 2 {
		id, err := client.NewID(channel, tcp, 0, nil)
		require.NoError(t, err)
		require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
		ids = append(ids, id)
	}
	require.NoError(t, ids[0].Migrate(channel))
	require.Equal(t, 2, told)
	for _, id := range ids {
		require.Same(t, id, channel.Next().ID)
	}
}

// TestNodeGoneLeaves looks at what is kept of a connection whose peer's process
// has ended.
func TestNodeGoneLeaves(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	server.listen(udp, serverAddr)
	id := client.resolve(tcp, serverAddr)
	require.NoError(t, id.Connect(n.now, param(3, "")))
	require.NoError(t, client.resolve(udp, serverAddr).Connect(n.now, param(4, "")))
	n.run(soon)
	server.NodeGone(n.now, client.number)
	require.Equal(t, "4 IDs, 2 ports, 2 claims, 0 connections, 0 numbers, 0 queue pairs, 0 services, 0 timers", server.Left())

	n, client, server = pair(t)
	server.listen(tcp, serverAddr)
	accepting(server)
	require.NoError(t, client.resolve(tcp, serverAddr).Connect(n.now, param(3, "")))
	n.run(soon)
	client.last(connResponse)
	client.NodeGone(n.now, server.number)
	require.Equal(t, "1 IDs, 1 ports, 1 claims, 1 connections, 1 numbers, 0 queue pairs, 0 services, 1 timers", client.Left())
}

// TestSharesOfABacklog lets a newcomer have less than half of an odd number of
// places, and all of them when they are free again.
func TestSharesOfABacklog(t *testing.T) {
	const backlog = 7
	n, server, _ := asked(t)
	quiet := server.NewChannel(func(int) {})
	listener := server.id(tcp)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort("10.0.0.2:7199")))
	require.NoError(t, listener.Listen(backlog))
	require.NoError(t, listener.Migrate(quiet))
	number := uint32(0)
	ask := func(src netip.Addr) {
		for range 20 {
			number++
			data := wire.MAD(requestFrom(src, 5, number, number, 7199))
			server.Receive(n.now, cm.MAD{Node: 1, Src: src, Dst: serverIP, Data: data[:]})
		}
	}
	take := func() map[netip.Addr]int {
		from := map[netip.Addr]int{}
		for e := quiet.Next(); e != nil; e = quiet.Next() {
			from[e.ID.PeerAddr().Addr()]++
			e.ID.Destroy(n.now)
		}
		return from
	}
	ask(attackerIP)
	ask(clientIP)
	require.Equal(t, map[netip.Addr]int{attackerIP: 4, clientIP: 3}, take())
	ask(clientIP)
	require.Equal(t, map[netip.Addr]int{clientIP: backlog}, take())
}
