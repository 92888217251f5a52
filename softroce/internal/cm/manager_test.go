// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	"github.com/verbena-go/verbena/softroce/internal/cm"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// TestRemoveDevice takes the server's device away.
func TestRemoveDevice(t *testing.T) {
	n, client, server := pair(t)
	anywhere := server.listen(tcp, "0.0.0.0:5")
	listener := server.listen(tcp, serverAddr)
	member := server.id(udp)
	require.NoError(t, member.Bind(netip.MustParseAddrPort("10.0.0.2:6")))
	require.NoError(t, member.JoinMulticast(netip.MustParseAddr("224.1.2.3"), 0, nil))
	connected, asking := connect(client), client.resolve(tcp, serverAddr)
	accepting(server)
	n.run(soon)
	child := server.last(established).ID
	server.on = nil
	require.NoError(t, asking.Connect(n.now, param(9, "")))
	n.run(soon)
	waiting := server.last(connRequest).ID

	server.log, client.log = nil, nil
	server.ports = nil
	server.RemoveDevice(n.now, "device2")
	server.RemoveDevice(n.now, "device2")
	n.run(soon)
	require.Equal(t, []string{"DEVICE_REMOVAL", "DEVICE_REMOVAL", "DEVICE_REMOVAL"}, server.log,
		"the listener, the member and the connection; not what was not accepted")
	require.Equal(t, []string{"DISCONNECTED", "REJECTED(28)"}, client.log)
	require.Empty(t, server.groups)
	for _, id := range []*cm.ID{listener, member, child, waiting} {
		require.ErrorIs(t, id.Listen(1), syscall.ENXIO)
		require.ErrorIs(t, id.Reject(n.now, 0, nil), syscall.ENXIO)
		_, err := id.LeaveMulticast(netip.MustParseAddr("224.1.2.3"))
		require.ErrorIs(t, err, syscall.ENXIO)
		id.Destroy(n.now)
	}
	require.NoError(t, anywhere.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_TOS, []byte{1}), "it is on no device")
	anywhere.Destroy(n.now)
	connected.Destroy(n.now)
	asking.Destroy(n.now)
	n.settle()
	n.empty()
}

func TestChangeAddress(t *testing.T) {
	n, client, _ := pair(t)
	id, other := client.id(tcp), client.id(tcp)
	require.NoError(t, id.Bind(netip.MustParseAddrPort("10.0.0.1:5")))
	require.NoError(t, other.Bind(netip.MustParseAddrPort("0.0.0.0:6")))
	client.ChangeAddress("device1")
	n.run(0)
	require.Len(t, client.log, 1)
	require.Same(t, id, client.last(addrChange).ID)
}

// A request to disconnect that the peer's host refuses is not repeated. What
// else is refused changes nothing, and neither does a message with other
// numbers, or from another host.
func TestUnreachable(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	accepting(server)
	id := connect(client)
	n.run(soon)
	var refused *wire.DREQ
	n.fault = func(m wire.Message) []time.Duration {
		if d, ok := m.(*wire.DREQ); ok {
			refused = d
		}
		return nil
	}
	require.NoError(t, id.Disconnect(n.now))
	require.NotNil(t, refused)
	back := func(m wire.Message, from netip.Addr) {
		data := wire.MAD(m)
		client.Unreachable(n.now, cm.MAD{Node: server.number, Src: from, Dst: netip.MustParseAddr("10.0.0.1"), Data: data[:]})
	}
	peer := netip.MustParseAddrPort(serverAddr).Addr()
	other := *refused
	other.RemoteCommID++
	back(&other, peer)
	back(refused, netip.MustParseAddr("10.0.0.77"))
	back(&wire.RTU{LocalCommID: refused.LocalCommID, RemoteCommID: refused.RemoteCommID}, peer)
	client.Unreachable(n.now, cm.MAD{})
	n.run(soon)
	require.NotContains(t, join(client.log), "DISCONNECTED")
	back(refused, peer)
	n.run(soon)
	require.Contains(t, join(client.log), "DISCONNECTED")
}

// TestNodeGone ends a process in each state of a connection.
func TestNodeGone(t *testing.T) {
	for _, test := range []struct {
		name           string
		start          func(client, server *program)
		client, server string // each sees the other go
	}{
		{
			name: "asked", client: "REJECTED(28)", server: "CONNECT_REQUEST",
			start: func(c, s *program) {
				connect(c)
				c.net.run(7 * time.Second) // until the server has said that it takes longer
			},
		},
		{
			name: "accepted", client: "CONNECT_RESPONSE REJECTED(28)", server: "CONNECT_REQUEST REJECTED(28)",
			start: func(c, s *program) {
				accepting(s)
				connect(c)
				c.on = nil
			},
		},
		{
			name: "established", client: "CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT",
			server: "CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT",
			start: func(c, s *program) {
				accepting(s)
				connect(c)
			},
		},
		{
			name: "disconnecting", client: "CONNECT_RESPONSE DISCONNECTED TIMEWAIT_EXIT",
			server: "CONNECT_REQUEST ESTABLISHED DISCONNECTED TIMEWAIT_EXIT",
			start: func(c, s *program) {
				accepting(s)
				id := connect(c)
				c.net.run(soon)
				require.NoError(c.net.t, id.Disconnect(c.net.now))
			},
		},
		{
			name: "two at once", client: "ADDR_RESOLVED ROUTE_RESOLVED CONNECT_RESPONSE CONNECT_RESPONSE " +
				"DISCONNECTED DISCONNECTED TIMEWAIT_EXIT TIMEWAIT_EXIT",
			server: "CONNECT_REQUEST CONNECT_REQUEST ESTABLISHED ESTABLISHED DISCONNECTED DISCONNECTED TIMEWAIT_EXIT TIMEWAIT_EXIT",
			start: func(c, s *program) {
				accepting(s)
				connect(c)
				require.NoError(c.net.t, c.resolve(tcp, serverAddr).Connect(c.net.now, param(0x10002, "")))
				s.on[connRequest] = func(e *cm.Event) { _ = e.ID.Accept(s.net.now, param(e.Conn.QPNum+5, "")) }
			},
		},
		{
			name: "service", client: "UNREACHABLE(-110)", server: "CONNECT_REQUEST",
			start: func(c, s *program) {
				require.NoError(c.net.t, c.resolve(udp, serverAddr).Connect(c.net.now, param(8, "")))
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, client, server := pair(t)
			listeners := []*cm.ID{server.listen(tcp, serverAddr), server.listen(udp, serverAddr)}
			test.start(client, server)
			n.run(soon)
			n.fault = func(wire.Message) []time.Duration { return nil }
			client.NodeGone(n.now, server.number)
			server.NodeGone(n.now, client.number)
			client.NodeGone(n.now, 77)
			n.settle()
			require.Equal(t, "ADDR_RESOLVED ROUTE_RESOLVED "+test.client, join(client.log))
			require.Equal(t, test.server, join(server.log))
			for _, p := range []*program{client, server} {
				for _, e := range p.events {
					e.ID.Destroy(n.now)
				}
			}
			for _, id := range listeners {
				id.Destroy(n.now)
			}
			n.settle()
			n.empty()
		})
	}
}

// TestDefaultScale has peers that agree on shorter times.
func TestDefaultScale(t *testing.T) {
	n := newNetwork(t)
	client := n.node(0, "10.0.0.1").program("client")
	n.node(0, "10.0.0.2")
	n.fault = func(wire.Message) []time.Duration { return nil }
	id := connect(client)
	n.settle()
	require.Equal(t, 16*6144*time.Millisecond/8, n.now)
	client.last(unreachable)
	_, ok := client.Next()
	require.False(t, ok)
	id.Destroy(n.now)
}

// TestNumbers never gives a connection the number 0, or one that is in use.
func TestNumbers(t *testing.T) {
	numbers := []uint32{1, 2, 0, 5, 3, 4, 5, 0, 6}
	var sent []uint32
	host := &recorder{newNetwork(t).node(1, "10.0.0.1"), func(mad cm.MAD) {
		sent = append(sent, binary.BigEndian.Uint32(mad.Data[24:]))
	}}
	m := cm.New(cm.Config{Host: host, GUID: 1, Random: func() uint32 {
		number := numbers[0]
		numbers = numbers[1:]
		return number
	}})
	for range 2 {
		id, err := m.NewID(m.NewChannel(func(int) {}), tcp, 0, nil) // a first PSN
		require.NoError(t, err)
		require.NoError(t, id.ResolveAddr(netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort(serverAddr))) // a port
		require.NoError(t, id.ResolveRoute(time.Second))
		require.NoError(t, id.Connect(0, param(1, "")))
	}
	require.Equal(t, []uint32{5, 6}, sent)
}

// FuzzReceive gives any messages to a manager with a listener and connections
// in several states. The first byte of each says what to do, the others what to
// change of a valid message.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0})
	seed := make([]byte, 0, 16*10)
	for kind := range 16 {
		seed = append(seed, byte(kind), 0, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		n, client, server := pair(t)
		var seen [][]byte
		hear := func(p *program) { // what is sent is raw material
			p.on[connRequest] = func(e *cm.Event) {
				if len(seen)%3 != 0 {
					_ = e.ID.Accept(n.now, param(uint32(len(seen)), ""))
				}
			}
			p.on[connResponse] = func(e *cm.Event) { _ = e.ID.Establish(n.now) }
			p.on[disconnected] = func(e *cm.Event) { _ = e.ID.Disconnect(n.now) }
		}
		hear(client)
		hear(server)
		n.fault = func(m wire.Message) []time.Duration {
			b := wire.MAD(m)
			seen = append(seen, b[:])
			return []time.Duration{latency}
		}
		listeners := []*cm.ID{server.listen(tcp, "[::]:7174"), server.listen(udp, serverAddr)}
		for i, space := range []librdmacm.PortSpace{tcp, udp, tcp, tcp} {
			require.NoError(t, client.resolve(space, serverAddr).Connect(n.now, param(uint32(0x500+i), "")))
			n.run(latency)
		}
		for len(data) >= 10 && n.now < 10*time.Minute {
			step := data[:10]
			data = data[10:]
			raw := make([]byte, wire.MADLen)
			if len(seen) > 0 {
				copy(raw, seen[int(step[1])%len(seen)])
			}
			for i := 2; i+1 < 8; i += 2 {
				if step[i] != 0 {
					raw[step[i]] = step[i+1]
				}
			}
			p := server
			if step[0]&1 != 0 {
				p = client
			}
			switch step[0] >> 1 & 7 {
			case 0:
				n.run(time.Duration(step[8]) * 100 * time.Millisecond)
			case 1:
				if e := len(p.events); e > 0 {
					p.events[int(step[8])%e].ID.Destroy(n.now)
				}
			case 2:
				if e := len(p.events); e > 0 {
					id := p.events[int(step[8])%e].ID
					_ = id.Disconnect(n.now)
					_, _, _ = id.InitQPAttr(libibverbs.QpState(step[9]))
				}
			case 3:
				p.Receive(n.now, cm.MAD{Node: 1 + int(step[9])%2, Data: raw[:step[8]]})
			default:
				p.Receive(n.now, cm.MAD{
					Node: 1 + int(step[9])%2, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), Data: raw,
				})
			}
		}
		for _, p := range []*program{client, server} {
			p.on = nil
		}
		for _, id := range listeners {
			id.Destroy(n.now)
		}
		for _, p := range []*program{client, server} {
			p.channel.Destroy(n.now)
			for _, e := range p.events {
				e.ID.Destroy(n.now)
			}
		}
		n.settle()
		n.empty()
	})
}
