// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// victims are a client with a connection to a server, and what an attacker may
// know of it: everything.
type victims struct {
	*network
	client, server *program
	req            *wire.REQ
	rep            *wire.REP
	got            []wire.Message // that the two sent since the connection was made
}

// newVictims stops the exchange before a message that kind names; "" does not.
func newVictims(t *testing.T, kind wire.Attribute) *victims {
	v := &victims{}
	v.network, v.client, v.server = pair(t)
	v.fault = func(m wire.Message) []time.Duration {
		switch m := m.(type) {
		case *wire.REQ:
			v.req = m
		case *wire.REP:
			v.rep = m
		}
		if m.Attribute() == kind {
			return nil
		}
		return []time.Duration{latency}
	}
	v.server.listen(tcp, serverAddr)
	accepting(v.server)
	connect(v.client)
	v.run(soon)
	v.client.log, v.server.log = nil, nil
	v.fault = func(m wire.Message) []time.Duration {
		v.got = append(v.got, m)
		return []time.Duration{latency}
	}
	return v
}

var (
	clientIP   = netip.MustParseAddr("10.0.0.1")
	serverIP   = netip.MustParseAddr("10.0.0.2")
	attackerIP = netip.MustParseAddr("198.51.100.66")
)

// TestOnlyThePeer has a third host that knows all numbers of a connection, and
// sends from its own address, or a third process of a machine that says that it
// has the peer's. Nothing that it sends changes the connection.
func TestOnlyThePeer(t *testing.T) {
	for state, stopped := range map[string]wire.Attribute{
		"asked": wire.AttrREP, "accepted": wire.AttrRTU, "established": 0,
	} {
		for at, attacker := range map[string]cm.MAD{
			"another host":                      {Node: 3, Src: attackerIP},
			"another process of the machine":    {Node: 3},
			"another address of the same node":  {Node: 1, Src: netip.MustParseAddr("10.0.0.9")},
			"another address of the other node": {Node: 2, Src: netip.MustParseAddr("10.0.0.9")},
		} {
			t.Run(state+", "+at, func(t *testing.T) {
				v := newVictims(t, stopped)
				v.node(1, "10.0.0.99") // takes the answers
				client, server := v.req.LocalCommID, uint32(0)
				if v.rep != nil {
					server = v.rep.LocalCommID
				}
				rej := func(mine, yours uint32, answers wire.Answered, reason wire.RejectReason) *wire.REJ {
					m := &wire.REJ{LocalCommID: mine, RemoteCommID: yours, Rejected: answers, Reason: reason}
					binary.BigEndian.PutUint64(m.Info[:], v.req.LocalCAGUID)
					return m
				}
				for _, to := range []*program{v.server, v.client} {
					mine, yours, qpn, guid := client, server, uint32(0x20001), v.req.LocalCAGUID
					own, src := serverIP, clientIP
					if to == v.client {
						mine, yours, qpn, guid = server, client, v.req.LocalQPN, uint64(2)<<32
						own, src = clientIP, serverIP
					}
					again := *v.req
					again.LocalCommID++ // the peer seems to have forgotten the connection
					again.LocalCAGUID = guid
					for _, m := range []wire.Message{
						&wire.RTU{LocalCommID: mine, RemoteCommID: yours},
						&wire.MRA{LocalCommID: mine, RemoteCommID: yours, Received: wire.AnswersREQ, ServiceTimeout: 31},
						&wire.MRA{LocalCommID: mine, RemoteCommID: yours, Received: wire.AnswersREP, ServiceTimeout: 31},
						rej(mine, yours, wire.AnswersREQ, wire.RejectConsumer), rej(mine, yours, wire.AnswersREP, wire.RejectStale),
						rej(0, yours, wire.AnswersREQ, wire.RejectServiceID), rej(mine, yours, wire.AnswersOther, wire.RejectConsumer),
						rej(mine, yours, wire.AnswersOther, wire.RejectTimeout),
						&wire.DREQ{LocalCommID: mine, RemoteCommID: yours, RemoteQPN: qpn},
						&wire.DREP{LocalCommID: mine, RemoteCommID: yours},
						&wire.REP{LocalCommID: 5, RemoteCommID: yours, LocalCAGUID: guid, LocalQPN: 0x20001},
						&wire.REP{LocalCommID: mine, RemoteCommID: yours, LocalCAGUID: guid, LocalQPN: 0x20001},
						&wire.SIDRRep{RequestID: yours, QPN: 4, QKey: 5},
						v.req, &again,
					} {
						data := wire.MAD(m)
						mad := attacker
						mad.Data, mad.Dst = data[:], own
						if !mad.Src.IsValid() {
							mad.Src = src
						}
						to.Receive(v.now, mad)
					}
				}
				v.run(20 * time.Millisecond)
				for _, m := range v.got {
					require.NotContains(t, []wire.Attribute{wire.AttrRTU, wire.AttrDREQ, wire.AttrMRA}, m.Attribute())
				}
				require.Empty(t, v.client.log, "client")
				for _, event := range v.server.log { // that the attacker asks, too, is its right, and that it gives up
					require.Contains(t, []string{"CONNECT_REQUEST", "REJECTED(6)"}, event)
				}
				v.fault = nil
				v.run(10 * time.Second) // what was lost comes again
				require.NotContains(t, join(v.client.log)+join(v.server.log), "DISCONNECTED")
				if stopped != 0 {
					require.Contains(t, v.server.log, "ESTABLISHED")
				}
			})
		}
	}
}

// TestOnlyTheServiceAnswers has a third host that answers a request for a
// datagram service.
func TestOnlyTheServiceAnswers(t *testing.T) {
	n, client, _ := pair(t)
	var asked *wire.SIDRReq
	n.fault = func(m wire.Message) []time.Duration {
		asked = m.(*wire.SIDRReq)
		return nil
	}
	require.NoError(t, client.resolve(udp, serverAddr).Connect(n.now, param(3, "")))
	n.run(0)
	client.log = nil
	data := wire.MAD(&wire.SIDRRep{RequestID: asked.RequestID, QPN: 4, QKey: 5})
	for _, change := range []func(*cm.MAD){
		func(m *cm.MAD) { m.Src = attackerIP },
		func(m *cm.MAD) { m.Dst = netip.MustParseAddr("10.0.0.3") },
		func(m *cm.MAD) { m.Node = 1 },
	} {
		forged := fromServer(data[:])
		change(&forged)
		client.Receive(n.now, forged)
		n.run(0)
		require.Empty(t, client.log)
	}
	client.Receive(n.now, fromServer(data[:]))
	n.run(0)
	require.Equal(t, []string{"ESTABLISHED"}, client.log)
}

// forged is a REQ from a host of its own address, which has the GUID of
// another.
func forged(guid uint64, number, qpn uint32, port uint16) *wire.REQ {
	return requestFrom(attackerIP, guid, number, qpn, port)
}

func requestFrom(src netip.Addr, guid uint64, number, qpn uint32, port uint16) *wire.REQ {
	req := requestTo(guid, number, qpn)
	req.ServiceID = wire.ServiceID(uint16(tcp), port)
	req.LocalResponseTimeout, req.Primary.AckTimeout = 31, 31
	req.Primary.LocalGID = wire.GIDOf(src)
	putHeader(req.PrivateData[:], src, serverIP)
	return req
}

func putHeader(private []byte, src, dst netip.Addr) {
	wire.IPHeader{Src: src, Dst: dst, SrcPort: 40000}.Put((*[wire.IPHeaderLen]byte)(private))
}

// deliver gives the server a message from an address of other machines, all of
// which are one node.
func (v *victims) deliver(src netip.Addr, m wire.Message) {
	data := wire.MAD(m)
	v.server.Receive(v.now, cm.MAD{Node: 1, Src: src, Dst: serverIP, Data: data[:]})
}

// TestForgedGUID has a host that learnt the GUID of another, and sends its
// requests in the name of that: with numbers of queue pairs that have
// connections, and with some that will.
func TestForgedGUID(t *testing.T) {
	v := newVictims(t, 0)
	for qpn := range uint32(64) {
		v.deliver(attackerIP, forged(v.req.LocalCAGUID, 1000+qpn, v.req.LocalQPN-32+qpn, 1))    // no ID listens there
		v.deliver(attackerIP, forged(v.req.LocalCAGUID, 2000+qpn, v.req.LocalQPN-32+qpn, 7174)) // accepted
	}
	v.run(time.Second)
	require.NotContains(t, v.client.log, "DISCONNECTED")
	require.NotContains(t, join(v.client.log), "REJECTED")
	v.client.log = nil
	id := v.client.resolve(tcp, serverAddr)
	require.NoError(t, id.Connect(v.now, param(v.req.LocalQPN+1, "")))
	v.run(time.Second)
	require.Equal(t, []string{"ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_RESPONSE"}, v.client.log)
}

// TestEnds sends requests whose packet, path and header do not name the same
// ends, or ends that no host has.
func TestEnds(t *testing.T) {
	const silence = wire.RejectReason(0)
	gid := func(a string) wire.GID { return wire.GIDOf(netip.MustParseAddr(a)) }
	for name, test := range map[string]struct {
		src   string // of the packet; "": the client's
		spoil func(*wire.REQ)
		want  wire.RejectReason
	}{
		"path from a third host":   {spoil: func(m *wire.REQ) { m.Primary.LocalGID = gid("198.51.100.7") }, want: wire.RejectGID},
		"path from nowhere":        {spoil: func(m *wire.REQ) { m.Primary.LocalGID = wire.GID{} }, want: wire.RejectGID},
		"path to another address":  {spoil: func(m *wire.REQ) { m.Primary.RemoteGID = gid("10.0.0.3") }, want: wire.RejectGID},
		"path to a third host":     {spoil: func(m *wire.REQ) { m.Primary.RemoteGID = gid("198.51.100.7") }, want: wire.RejectGID},
		"header from a third host": {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], attackerIP, serverIP) }, want: wire.RejectConsumer},
		"header from the server":   {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], serverIP, serverIP) }, want: wire.RejectConsumer},
		"header from a group":      {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], netip.MustParseAddr("224.0.0.5"), serverIP) }, want: wire.RejectConsumer},
		"header from all":          {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], netip.MustParseAddr("255.255.255.255"), serverIP) }, want: wire.RejectConsumer},
		"header from nowhere":      {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], netip.IPv4Unspecified(), serverIP) }, want: wire.RejectConsumer},
		"header from loopback":     {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], netip.MustParseAddr("127.0.0.1"), serverIP) }, want: wire.RejectConsumer},
		"header of IPv6": {spoil: func(m *wire.REQ) {
			putHeader(m.PrivateData[:], netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"))
		}, want: wire.RejectConsumer},
		"header to another address":  {spoil: func(m *wire.REQ) { putHeader(m.PrivateData[:], clientIP, netip.MustParseAddr("10.0.0.3")) }, want: wire.RejectConsumer},
		"from a group":               {src: "224.0.0.5", want: silence},
		"from a group of IPv6":       {src: "ff02::1", want: silence},
		"from all":                   {src: "255.255.255.255", want: silence},
		"from nowhere":               {src: "0.0.0.0", want: silence},
		"from this network":          {src: "0.1.2.3", want: silence},
		"from nowhere in IPv6":       {src: "::", want: silence},
		"from where there is no way": {src: "198.51.100.77", want: silence},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, server := pair(t)
			var got []wire.Message
			n.fault = func(m wire.Message) []time.Duration {
				got = append(got, m)
				return nil
			}
			server.listen(tcp, "0.0.0.0:7174")
			server.listen(udp, "0.0.0.0:7174")
			src := clientIP
			if test.src != "" {
				src = netip.MustParseAddr(test.src)
			}
			req := requestFrom(src, 5, 77, 0x99, 7174)
			if test.spoil != nil {
				test.spoil(req)
			}
			sidr := &wire.SIDRReq{RequestID: 78, ServiceID: wire.ServiceID(uint16(udp), 7174)}
			copy(sidr.PrivateData[:], req.PrivateData[:])
			for _, m := range []wire.Message{req, sidr} {
				if _, is := m.(*wire.SIDRReq); is && test.want == wire.RejectGID {
					continue // it has no path
				}
				data := wire.MAD(m)
				got = nil
				server.Receive(n.now, cm.MAD{Node: 1, Src: src, Dst: serverIP, Data: data[:]})
				n.run(time.Second)
				require.Empty(t, server.log)
				if test.want == silence {
					require.Empty(t, got)
				} else if m == req {
					require.Equal(t, test.want, one[*wire.REJ](t, got).Reason)
				} else {
					require.Equal(t, wire.SIDRRejected, one[*wire.SIDRRep](t, got).Status)
				}
			}
		})
	}
}

// TestPeersTimes has a peer that asks for the longest times that there are, and
// answers nothing.
func TestPeersTimes(t *testing.T) {
	t.Run("of a request", func(t *testing.T) {
		n, server, ask := asked(t)
		server.on[connRequest] = func(e *cm.Event) {
			attr, _, err := e.ID.InitQPAttr(libibverbs.IBV_QPS_INIT)
			require.NoError(t, err)
			require.Zero(t, attr.Timeout)
			attr, _, err = e.ID.InitQPAttr(libibverbs.IBV_QPS_RTS)
			require.NoError(t, err)
			require.Equal(t, uint8(22), attr.Timeout, "of the queue pair")
			require.NoError(t, e.ID.Accept(n.now, param(0x20002, "")))
		}
		req := requestTo(5, 77, 0x99)
		req.LocalResponseTimeout, req.RemoteResponseTimeout, req.Primary.AckTimeout, req.MaxCMRetries = 31, 31, 31, 15
		one[*wire.REP](t, ask(req))
		began := n.now
		require.Empty(t, ask(&wire.MRA{LocalCommID: 77, RemoteCommID: 0, Received: wire.AnswersREP, ServiceTimeout: 31}))
		for server.log[len(server.log)-1] == "CONNECT_REQUEST" {
			n.run(time.Second)
		}
		server.last(unreachable)
		require.Less(t, n.now-began, 140*time.Second)
	})
	t.Run("that an answer is late", func(t *testing.T) {
		v := newVictims(t, wire.AttrREP)
		v.fault = func(wire.Message) []time.Duration { return nil }
		data := wire.MAD(&wire.MRA{LocalCommID: 7, RemoteCommID: v.req.LocalCommID, Received: wire.AnswersREQ, ServiceTimeout: 31})
		v.client.Receive(v.now, fromServer(data[:]))
		began := v.now
		for len(v.client.log) == 0 {
			v.run(time.Second)
		}
		v.client.last(unreachable)
		require.Less(t, v.now-began, 20*time.Minute)
	})
	t.Run("of an acceptance, and the time wait", func(t *testing.T) {
		v := newVictims(t, wire.AttrREP)
		data := wire.MAD(&wire.REP{LocalCommID: 7, RemoteCommID: v.req.LocalCommID, LocalCAGUID: 5, LocalQPN: 99, TargetAckDelay: 31})
		v.client.Receive(v.now, fromServer(data[:]))
		v.run(soon)
		id := v.client.last(connResponse).ID
		attr, _, err := id.InitQPAttr(libibverbs.IBV_QPS_RTS)
		require.NoError(t, err)
		require.LessOrEqual(t, attr.Timeout, uint8(22))
		require.NoError(t, id.Disconnect(v.now))
		v.fault = nil
		drep := wire.MAD(&wire.DREP{LocalCommID: 7, RemoteCommID: v.req.LocalCommID})
		v.client.Receive(v.now, fromServer(drep[:]))
		v.run(20 * time.Second)
		v.client.last(timewaitExit)
	})
}

// TestTimeWaitsAreBounded has a host that makes and ends connections without
// end, while two others do so now and then. Theirs keep their time wait.
func TestTimeWaitsAreBounded(t *testing.T) {
	n, _, server := pair(t)
	n.fault = func(wire.Message) []time.Duration { return nil }
	server.listen(tcp, serverAddr)
	server.on[connRequest] = func(e *cm.Event) {
		_ = e.ID.Accept(n.now, param(0x20002, ""))
		e.ID.Destroy(n.now)
	}
	ask := func(src netip.Addr, number uint32) (rejected bool) {
		stale := false
		n.fault = func(m wire.Message) []time.Duration {
			rej, is := m.(*wire.REJ)
			stale = stale || is && rej.Reason == wire.RejectStale
			return nil
		}
		data := wire.MAD(requestFrom(src, 5, number, number, 7174))
		server.Receive(n.now, cm.MAD{Node: 1, Src: src, Dst: serverIP, Data: data[:]})
		n.run(0)
		server.log, server.events = nil, nil
		return stale
	}
	const limit = 1 << 13
	honest := func(i uint32) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, 50 + byte(i)}) }
	for i := range uint32(10) {
		require.False(t, ask(honest(i%2), 1+i))
	}
	for i := range uint32(3 * limit) {
		ask(attackerIP, 100+i)
	}
	var conns int
	_, err := fmt.Sscanf(server.Left(), "1 IDs, 1 ports, 1 claims, %d connections", &conns)
	require.NoError(t, err, server.Left())
	require.LessOrEqual(t, conns, limit)
	require.Greater(t, conns, limit/4)
	for i := range uint32(10) {
		require.True(t, ask(honest(i%2), 1+i), "its time wait lasts")
	}
	require.True(t, ask(attackerIP, 100+3*limit-1), "the attacker's newest")
	require.False(t, ask(attackerIP, 100), "the attacker's first")
	n.run(time.Minute)
	require.Equal(t, "1 IDs, 1 ports, 1 claims, 0 connections, 0 numbers, 0 queue pairs, 0 services, 0 timers", server.Left())
}

// TestBacklogIsShared fills the queue of a listener with requests of one party:
// of another network address there is still room for its share.
func TestBacklogIsShared(t *testing.T) {
	for kind, test := range map[string]struct {
		space   librdmacm.PortSpace
		request func(src netip.Addr, number uint32) wire.Message
	}{
		"connections": {tcp, func(src netip.Addr, number uint32) wire.Message { return requestFrom(src, 5, number, number, 7174) }},
		"datagrams": {udp, func(src netip.Addr, number uint32) wire.Message {
			m := &wire.SIDRReq{RequestID: number, ServiceID: wire.ServiceID(uint16(udp), 7174)}
			putHeader(m.PrivateData[:], src, serverIP)
			return m
		}},
	} {
		t.Run(kind, func(t *testing.T) {
			const backlog = 8
			n, _, server := pair(t)
			n.fault = func(wire.Message) []time.Duration { return nil }
			listener := server.id(test.space)
			require.NoError(t, listener.Bind(netip.MustParseAddrPort(serverAddr)))
			require.NoError(t, listener.Listen(backlog))
			quiet := server.NewChannel(func(int) {})
			require.NoError(t, listener.Migrate(quiet))
			number := uint32(0)
			ask := func(src netip.Addr) {
				number++
				data := wire.MAD(test.request(src, number))
				server.Receive(n.now, cm.MAD{Node: 1, Src: src, Dst: serverIP, Data: data[:]})
			}
			for range 100 {
				ask(attackerIP)
			}
			require.Equal(t, backlog, quiet.Len())
			for range 100 {
				ask(clientIP)
			}
			require.Equal(t, backlog, quiet.Len())
			from := map[netip.Addr]int{}
			for e := quiet.Next(); e != nil; e = quiet.Next() {
				from[e.ID.PeerAddr().Addr()]++
				e.ID.Destroy(n.now)
			}
			require.Equal(t, map[netip.Addr]int{attackerIP: backlog / 2, clientIP: backlog / 2}, from)
			listener.Destroy(n.now)
			n.settle()
			n.empty()
		})
	}
}

// TestBacklogIsSharedInANetwork has a host of IPv6 that asks with one address,
// or with many of its network, beside one of the same network and one of
// another.
func TestBacklogIsSharedInANetwork(t *testing.T) {
	own := netip.MustParseAddr("2001:db8::2")
	near, far := netip.MustParseAddr("2001:db8:1::77"), netip.MustParseAddr("2001:db8:2::77")
	for name, test := range map[string]struct {
		addresses int // of the attacker
		want      map[netip.Addr]int
	}{
		"one address":    {1, map[netip.Addr]int{near: 2, far: 4, {}: 2}},
		"many addresses": {100, map[netip.Addr]int{far: 4, {}: 4}},
	} {
		t.Run(name, func(t *testing.T) {
			const backlog = 8
			n, _, server := pair(t)
			n.fault = func(wire.Message) []time.Duration { return nil }
			listener := server.id(tcp)
			require.NoError(t, listener.Bind(netip.AddrPortFrom(own, 7174)))
			require.NoError(t, listener.Listen(backlog))
			quiet := server.NewChannel(func(int) {})
			require.NoError(t, listener.Migrate(quiet))
			number := uint32(0)
			ask := func(src netip.Addr) {
				number++
				req := requestFrom(src, 5, number, number, 7174)
				req.Primary.RemoteGID = wire.GIDOf(own)
				putHeader(req.PrivateData[:], src, own)
				data := wire.MAD(req)
				server.Receive(n.now, cm.MAD{Node: 1, Src: src, Dst: own, Data: data[:]})
			}
			for i := range 100 {
				a := near.As16()
				a[14], a[15] = 1, byte(i%test.addresses)
				ask(netip.AddrFrom16(a))
			}
			for range 100 {
				ask(far)
				ask(near)
			}
			from := map[netip.Addr]int{}
			for e := quiet.Next(); e != nil; e = quiet.Next() {
				a := e.ID.PeerAddr().Addr()
				if a != near && a != far {
					a = netip.Addr{} // the attacker's
				}
				from[a]++
				e.ID.Destroy(n.now)
			}
			require.Equal(t, test.want, from)
			listener.Destroy(n.now)
			n.settle()
			n.empty()
		})
	}
}
