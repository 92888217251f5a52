// SPDX-License-Identifier: Apache-2.0

package cm_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
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

// pair returns a client and a server on nodes of their own.
func pair(t testing.TB) (n *network, client, server *program) {
	n = newNetwork(t)
	client = n.node(1, "10.0.0.1", "2001:db8::1", "fe80::1").program("client")
	server = n.node(1, "10.0.0.2", "2001:db8::2", "127.0.0.1", "::1", "10.0.0.3").program("server")
	return n, client, server
}

func TestConnect(t *testing.T) {
	for _, test := range []struct {
		name       string
		space      librdmacm.PortSpace
		qpType     libibverbs.QpType
		listen, to string
	}{
		{name: "IPv4", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "10.0.0.2:7174", to: "10.0.0.2:7174"},
		{name: "IPv6", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "[2001:db8::2]:7174", to: "[2001:db8::2]:7174"},
		{name: "any address of IPv4", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "0.0.0.0:7174", to: "10.0.0.2:7174"},
		{name: "any address of IPv6", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "[::]:7174", to: "[2001:db8::2]:7174"},
		{name: "any address of IPv6, from IPv4", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "[::]:7174", to: "10.0.0.2:7174"},
		{name: "loopback address that the device lacks", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "127.0.0.2:7174", to: "10.0.0.2:7174"},
		{name: "second address", space: tcp, qpType: libibverbs.IBV_QPT_RC, listen: "0.0.0.0:7174", to: "10.0.0.3:7174"},
		{name: "port space of InfiniBand", space: librdmacm.RDMA_PS_IB, qpType: libibverbs.IBV_QPT_RC, listen: "10.0.0.2:7174", to: "10.0.0.2:7174"},
		{name: "unreliable", space: librdmacm.RDMA_PS_IB, qpType: libibverbs.IBV_QPT_UC, listen: "10.0.0.2:7174", to: "10.0.0.2:7174"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, client, server := pair(t)
			reliable := test.qpType == libibverbs.IBV_QPT_RC
			newID := func(p *program) *cm.ID {
				id, err := p.NewID(p.channel, test.space, test.qpType, p.name)
				require.NoError(t, err)
				require.Equal(t, test.qpType, id.QPType())
				require.Equal(t, test.space, id.PortSpace())
				return id
			}
			listener := newID(server)
			require.NoError(t, listener.Bind(netip.MustParseAddrPort(test.listen)))
			require.NoError(t, listener.Listen(0))
			require.Equal(t, netip.MustParseAddrPort(test.listen), listener.LocalAddr())

			active := newID(client)
			to := netip.MustParseAddrPort(test.to)
			require.NoError(t, active.ResolveAddr(netip.AddrPort{}, to))
			require.Equal(t, to, active.PeerAddr())
			require.NoError(t, active.ResolveRoute(time.Second))
			active.SetLocalECE(libibverbs.Ece{VendorId: 0x123456, Options: 0x77})
			require.NoError(t, active.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_TOS, []byte{96}))
			require.NoError(t, active.Connect(n.now, cm.ConnParam{
				PrivateData: []byte("hello"), ResponderResources: 3, InitiatorDepth: 5, FlowControl: true,
				RetryCount: 9, RNRRetryCount: 6, SRQ: true, QPNum: 0x10001,
			}))
			n.run(time.Second)

			request := server.last(connRequest)
			require.Equal(t, cm.ConnParam{
				PrivateData: pad("hello", 56), ResponderResources: 5, InitiatorDepth: 3, FlowControl: true,
				RetryCount: 7, RNRRetryCount: 6, SRQ: true, QPNum: 0x10001,
			}, request.Conn)
			require.Same(t, listener, request.Listen)
			require.Equal(t, libibverbs.Ece{VendorId: 0x123456, Options: 0x77}, request.ECE)
			passive := request.ID
			require.Equal(t, "server", passive.Context)
			require.Equal(t, test.qpType, passive.QPType())
			require.Equal(t, request.ECE, passive.RemoteECE())
			require.Equal(t, active.LocalAddr(), passive.PeerAddr())
			require.Equal(t, active.PeerAddr(), passive.LocalAddr())
			port, ok := passive.Port()
			require.True(t, ok)
			require.Equal(t, server.ports[to.Addr()], port)
			there, _ := active.Path()
			back, ok := passive.Path()
			require.True(t, ok)
			require.Equal(t, there.DGID, back.SGID)
			require.Equal(t, there.SGID, back.DGID)
			require.Equal(t, []any{there.FlowLabel, there.MTU, there.HopLimit, there.PacketLifeTime},
				[]any{back.FlowLabel, back.MTU, back.HopLimit, back.PacketLifeTime})

			passive.SetLocalECE(libibverbs.Ece{VendorId: 0xABCDEF, Options: 0x78})
			answer := cm.ConnParam{
				PrivateData: []byte("welcome"), ResponderResources: 4, InitiatorDepth: 2, FlowControl: true,
				RNRRetryCount: 8, SRQ: true, QPNum: 0xFF020002,
			}
			require.NoError(t, passive.Accept(n.now, answer))
			n.run(time.Second)
			response := client.last(connResponse)
			require.Equal(t, cm.ConnParam{
				PrivateData: pad("welcome", 196), ResponderResources: 2, InitiatorDepth: 4, FlowControl: true,
				RNRRetryCount: 7, SRQ: true, QPNum: 0x020002,
			}, response.Conn)
			require.Equal(t, libibverbs.Ece{VendorId: 0x123456, Options: 0x78}, response.ECE)

			// Both queue pairs are taken to states that fit each other.
			attrs := func(id *cm.ID, to libibverbs.QpState, masks ...libibverbs.QpAttrMask) libibverbs.QpAttr {
				attr, mask, err := id.InitQPAttr(to)
				require.NoError(t, err)
				require.Equal(t, to, attr.QpState)
				want := libibverbs.IBV_QP_STATE
				for _, m := range masks {
					want |= m
				}
				require.Equal(t, want, mask)
				return attr
			}
			rtrMask := []libibverbs.QpAttrMask{
				libibverbs.IBV_QP_AV, libibverbs.IBV_QP_PATH_MTU, libibverbs.IBV_QP_DEST_QPN, libibverbs.IBV_QP_RQ_PSN,
			}
			rtsMask := []libibverbs.QpAttrMask{libibverbs.IBV_QP_SQ_PSN}
			if reliable {
				rtrMask = append(rtrMask, libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC, libibverbs.IBV_QP_MIN_RNR_TIMER)
				rtsMask = append(rtsMask, libibverbs.IBV_QP_RETRY_CNT, libibverbs.IBV_QP_RNR_RETRY,
					libibverbs.IBV_QP_MAX_QP_RD_ATOMIC, libibverbs.IBV_QP_TIMEOUT)
			}
			var rtr, rts [2]libibverbs.QpAttr
			for i, id := range []*cm.ID{active, passive} {
				initial := attrs(id, libibverbs.IBV_QPS_INIT,
					libibverbs.IBV_QP_ACCESS_FLAGS, libibverbs.IBV_QP_PKEY_INDEX, libibverbs.IBV_QP_PORT)
				require.Equal(t, uint8(1), initial.PortNum)
				require.Equal(t, libibverbs.IBV_ACCESS_REMOTE_WRITE|libibverbs.IBV_ACCESS_REMOTE_READ|
					libibverbs.IBV_ACCESS_REMOTE_ATOMIC|libibverbs.IBV_ACCESS_FLUSH_GLOBAL, initial.QpAccessFlags)
				rtr[i], rts[i] = attrs(id, libibverbs.IBV_QPS_RTR, rtrMask...), attrs(id, libibverbs.IBV_QPS_RTS, rtsMask...)
			}
			require.Equal(t, []uint32{0x020002, 0x10001}, []uint32{rtr[0].DestQpNum, rtr[1].DestQpNum})
			require.Equal(t, rtr[0].RqPsn, rts[1].SqPsn)
			require.Equal(t, rtr[1].RqPsn, rts[0].SqPsn)
			require.NotEqual(t, rts[0].SqPsn, rts[1].SqPsn)
			for i, id := range []*cm.ID{active, passive} {
				ah := rtr[i].AhAttr
				own, _ := id.Port()
				require.Equal(t, [16]byte(wire.GIDOf(id.PeerAddr().Addr())), *ah.Grh.Dgid.Raw())
				require.Equal(t, []any{own.SGIDIndex, uint8(64), there.FlowLabel, uint8(1), uint8(1)},
					[]any{ah.Grh.SgidIndex, ah.Grh.HopLimit, ah.Grh.FlowLabel, ah.IsGlobal, ah.PortNum})
				require.Equal(t, libibverbs.IBV_MTU_1024, rtr[i].PathMtu)
			}
			if reliable {
				require.Equal(t, []uint8{2, 4}, []uint8{rtr[0].MaxDestRdAtomic, rtr[1].MaxDestRdAtomic})
				require.Equal(t, []uint8{4, 2}, []uint8{rts[0].MaxRdAtomic, rts[1].MaxRdAtomic})
				require.Equal(t, []uint8{7, 7}, []uint8{rts[0].RetryCnt, rts[1].RetryCnt})
				require.Equal(t, []uint8{7, 6}, []uint8{rts[0].RnrRetry, rts[1].RnrRetry}, "each side has the other's")
				require.Equal(t, []uint8{19, 19}, []uint8{rts[0].Timeout, rts[1].Timeout})
			}

			require.NoError(t, active.Establish(n.now))
			n.run(time.Second)
			require.Equal(t, cm.ConnParam{}, server.last(established).Conn)
			require.Same(t, passive, server.last(established).ID)
			require.NoError(t, passive.Disconnect(n.now))
			n.run(time.Second)
			require.Same(t, active, client.last(disconnected).ID)
			require.Equal(t, "ESTABLISHED", server.log[len(server.log)-1], "the peer has not agreed yet")
			require.NoError(t, active.Disconnect(n.now))
			n.run(latency)
			server.last(disconnected)
			_, _, err := active.InitQPAttr(libibverbs.IBV_QPS_RTR)
			require.ErrorIs(t, err, syscall.EINVAL)
			n.run(3 * time.Second)
			client.last(timewaitExit)
			server.last(timewaitExit)
			require.Equal(t, []string{"REQ", "REP", "RTU", "DREQ", "DREP"}, n.sent)

			require.Equal(t, 5, active.Reported())
			require.Equal(t, 1, listener.Reported())
			require.Equal(t, 3, passive.Reported())
			for _, id := range []*cm.ID{active, passive, listener} {
				id.Destroy(n.now)
			}
			n.empty()
		})
	}
}

// TestRequestIsLinuxs compares with a request that Linux 6.1 has sent for rping
// -c from 192.0.2.1 to 192.0.2.9, byte by byte; but for the transaction ID, of
// which Linux has a number of its own.
func TestRequestIsLinuxs(t *testing.T) {
	n := newNetwork(t)
	var sent []byte
	numbers := []uint32{0xC28E7D, 0xF6DC5C4F}
	host := &recorder{n.node(1, "192.0.2.1"), func(mad cm.MAD) {
		mad.Routed = nil
		require.Equal(t, cm.MAD{
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.9"), Service: 0x01061C06, Data: mad.Data,
		}, mad)
		sent = mad.Data
	}}
	m := cm.New(cm.Config{Host: host, GUID: 0xc46b32fffe30fd89, Random: func() uint32 {
		number := numbers[0]
		numbers = numbers[1:]
		return number
	}})
	id, err := m.NewID(m.NewChannel(func(int) {}), tcp, 0, nil)
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(netip.MustParseAddrPort("192.0.2.1:54267"), netip.MustParseAddrPort("192.0.2.9:7174")))
	require.NoError(t, id.ResolveRoute(time.Second))
	require.NoError(t, id.Connect(0, cm.ConnParam{
		ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7, QPNum: 0x11,
	}))
	want := make([]byte, 256)
	for at, field := range map[int]string{
		0:        "01070203 00000000 00000000 00000000 0010 0000 00000000",
		24:       "f6dc5c4f 00000000 0000000001061c06 c46b32fffe30fd89 00000000 00000000",
		24 + 32:  "000011 01 000000 01 000000 a0 c28e7d a7 ffff 37 f0 ffff ffff",
		24 + 56:  "00000000000000000000ffffc0000201 00000000000000000000ffffc0000209 9c76b000 00 40 00 98",
		24 + 140: "00 40 d3fb 000000000000000000000000c0000201 000000000000000000000000c0000209",
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(field, " ", ""))
		require.NoError(t, err)
		copy(want[at:], b)
	}
	require.Equal(t, []byte{0xf6, 0xdc, 0x5c, 0x4f}, sent[12:16])
	clear(sent[8:16])
	require.Equal(t, hex.Dump(want), hex.Dump(sent))
}

// A recorder is a host that shows what is sent, and sends nothing.
type recorder struct {
	*node
	show func(cm.MAD)
}

func (r *recorder) Send(mad cm.MAD) { r.show(mad) }

// Route has a way to everywhere.
func (r *recorder) Route(_, src netip.Addr) (netip.Addr, error) { return src, nil }

// TestLinuxsTimes counts how often and for how long a message is repeated.
func TestLinuxsTimes(t *testing.T) {
	lose := func(kinds ...wire.Attribute) func(wire.Message) []time.Duration {
		return func(m wire.Message) []time.Duration {
			if slices.Contains(kinds, m.Attribute()) {
				return nil
			}
			return []time.Duration{latency}
		}
	}
	for _, test := range []struct {
		name  string
		kind  string
		lost  []wire.Attribute
		times int
		after time.Duration // from the first message to the event
		event func(client, server *program) *cm.Event
		start func(client, server *program)
	}{
		{
			name: "request", kind: "REQ", lost: []wire.Attribute{wire.AttrREQ}, times: 16, after: 16 * 6144 * time.Millisecond,
			event: func(client, _ *program) *cm.Event { return client.last(unreachable) },
		},
		{
			// It is repeated for each of the 10 requests that come meanwhile, too.
			name: "acceptance", kind: "REP", lost: []wire.Attribute{wire.AttrREP}, times: 16 + 10, after: 16*4096*time.Millisecond + latency,
			event: func(_, server *program) *cm.Event { return server.last(unreachable) },
		},
		{
			name: "end", kind: "DREQ", lost: []wire.Attribute{wire.AttrDREP}, times: 16, after: 16*6144*time.Millisecond + 2*latency,
			event: func(client, _ *program) *cm.Event { return client.last(disconnected) },
			start: func(client, _ *program) {
				client.on[connResponse] = func(e *cm.Event) {
					require.NoError(client.net.t, e.ID.Establish(client.net.now))
					require.NoError(client.net.t, e.ID.Disconnect(client.net.now))
				}
			},
		},
		{
			name: "service", kind: "SIDR_REQ", lost: []wire.Attribute{wire.AttrSIDRReq}, times: 16, after: 16 * 4096 * time.Millisecond,
			event: func(client, _ *program) *cm.Event { return client.last(unreachable) },
			start: func(client, _ *program) {
				id := client.resolve(udp, serverAddr)
				require.NoError(client.net.t, id.Connect(0, param(1, "")))
			},
		},
	} {
		for _, scale := range []float64{1, 0.25} {
			t.Run(fmt.Sprint(test.name, " ", scale), func(t *testing.T) {
				n := newNetwork(t)
				client, server := n.node(scale, "10.0.0.1").program("client"), n.node(scale, "10.0.0.2").program("server")
				n.fault = lose(test.lost...)
				server.listen(tcp, serverAddr)
				accepting(server)
				if test.kind != "SIDR_REQ" {
					connect(client)
				}
				if test.start != nil {
					test.start(client, server)
				}
				var when time.Duration
				for _, p := range []*program{client, server} {
					for _, kind := range []librdmacm.CmEventType{unreachable, disconnected} {
						p.on[kind] = func(e *cm.Event) {
							if e.Status == -int(syscall.ETIMEDOUT) {
								when = n.now
							}
						}
					}
				}
				for when == 0 {
					require.True(t, n.step(time.Hour))
				}
				require.Equal(t, -int(syscall.ETIMEDOUT), test.event(client, server).Status)
				require.Equal(t, test.times, n.count(test.kind))
				latencies := test.after % (1024 * time.Millisecond)
				require.InDelta(t, float64(test.after-latencies)*scale, float64(when), float64(5*latency))
			})
		}
	}
}

// TestSlow lets both sides think for minutes: an answer that takes longer is
// announced as soon as the other side asks again.
func TestSlow(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	id := connect(client)
	client.on[connResponse] = nil
	n.run(5 * time.Minute)
	require.Equal(t, 1+1+4, n.count("REQ"), "again after 6 s, then each 67 s")
	require.Equal(t, 1+4, n.count("MRA"))
	require.NoError(t, server.last(connRequest).ID.Accept(n.now, param(0x20002, "")))
	n.run(5 * time.Minute)
	require.Equal(t, 1+1+4, n.count("REP"), "again after 4 s, then each 67 s")
	require.Equal(t, 2*(1+4), n.count("MRA"))
	require.NoError(t, id.Establish(n.now))
	n.run(latency)
	server.last(established)
	require.Equal(t, []string{"ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_RESPONSE"}, client.log)
}

func TestReject(t *testing.T) {
	for _, test := range []struct {
		name   string
		listen func(server *program)
		space  librdmacm.PortSpace
		to     string
		status int
		data   string
	}{
		{name: "no listener", listen: func(*program) {}, status: 8},
		{name: "bound only", status: 8, listen: func(s *program) {
			require.NoError(s.net.t, s.id(tcp).Bind(netip.MustParseAddrPort(serverAddr)))
		}},
		{name: "another port", status: 8, listen: func(s *program) { s.listen(tcp, "10.0.0.2:7175") }},
		{name: "another port space", status: 8, listen: func(s *program) { s.listen(librdmacm.RDMA_PS_IB, serverAddr) }},
		{name: "another address of the device", status: 28, listen: func(s *program) { s.listen(tcp, "10.0.0.3:7174") }},
		{name: "IPv6 alone", status: 28, listen: func(s *program) {
			id := s.id(tcp)
			require.NoError(s.net.t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_AFONLY, []byte{1, 0, 0, 0}))
			require.NoError(s.net.t, id.Bind(netip.MustParseAddrPort("[::]:7174")))
			require.NoError(s.net.t, id.Listen(0))
		}},
		{name: "IPv4 alone", status: 28, to: "[2001:db8::2]:7174", listen: func(s *program) { s.listen(tcp, "0.0.0.0:7174") }},
		{name: "another type", status: 28, space: librdmacm.RDMA_PS_IB, listen: func(s *program) {
			id, err := s.NewID(s.channel, librdmacm.RDMA_PS_IB, libibverbs.IBV_QPT_UC, nil)
			require.NoError(s.net.t, err)
			require.NoError(s.net.t, id.Bind(netip.MustParseAddrPort(serverAddr)))
			require.NoError(s.net.t, id.Listen(0))
		}},
		{name: "by the program", status: 28, data: "no", listen: func(s *program) {
			s.listen(tcp, serverAddr)
			s.on[connRequest] = func(e *cm.Event) {
				require.ErrorIs(s.net.t, e.ID.Reject(s.net.now, 8, nil), syscall.EINVAL)
				require.ErrorIs(s.net.t, e.ID.Reject(s.net.now, 0, make([]byte, 149)), syscall.EINVAL)
				require.NoError(s.net.t, e.ID.Reject(s.net.now, 0, []byte("no")))
				require.ErrorIs(s.net.t, e.ID.Reject(s.net.now, 0, nil), syscall.EINVAL, "twice")
			}
		}},
		{name: "by the program, options", status: 35, listen: func(s *program) {
			s.listen(tcp, serverAddr)
			s.on[connRequest] = func(e *cm.Event) { require.NoError(s.net.t, e.ID.Reject(s.net.now, 35, nil)) }
		}},
		{name: "acceptance with too much data", status: 28, listen: func(s *program) {
			s.listen(tcp, serverAddr)
			s.on[connRequest] = func(e *cm.Event) {
				require.ErrorIs(s.net.t, e.ID.Accept(s.net.now, param(2, strings.Repeat("x", 197))), syscall.EINVAL)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, client, server := pair(t)
			test.listen(server)
			space, to := test.space, test.to
			if space == 0 {
				space = tcp
			}
			if to == "" {
				to = serverAddr
			}
			id := client.resolve(space, to)
			require.NoError(t, id.Connect(n.now, param(0x10001, "")))
			n.run(time.Second)
			e := client.last(rejected)
			require.Equal(t, test.status, e.Status)
			require.Equal(t, pad(test.data, 148), e.Conn.PrivateData)
			require.ErrorIs(t, id.Connect(n.now, param(0x10001, "")), syscall.EINVAL, "an ID is good for one attempt")
		})
	}
}

// requestTo returns a REQ as a peer would send it to the server.
func requestTo(guid uint64, number, qpn uint32) *wire.REQ {
	req := &wire.REQ{
		LocalCommID: number, ServiceID: wire.ServiceID(uint16(tcp), 7174), LocalCAGUID: guid, LocalQPN: qpn,
		RemoteResponseTimeout: 20, LocalResponseTimeout: 20, MaxCMRetries: 15, PathMTU: 3,
		Primary: wire.Path{
			LocalGID: wire.GIDOf(netip.MustParseAddr("10.0.0.1")), RemoteGID: wire.GIDOf(netip.MustParseAddr("10.0.0.2")),
			HopLimit: 64, AckTimeout: 19,
		},
	}
	var header [wire.IPHeaderLen]byte
	wire.IPHeader{
		Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), SrcPort: 40000,
	}.Put(&header)
	copy(req.PrivateData[:], header[:])
	return req
}

// asked returns a server that listens, and a function that gives it a message
// and returns all that it sends, parsed.
func asked(t testing.TB) (*network, *program, func(wire.Message) []wire.Message) {
	n, client, server := pair(t)
	var got []wire.Message
	n.fault = func(m wire.Message) []time.Duration {
		got = append(got, m)
		return nil
	}
	server.listen(tcp, serverAddr)
	return n, server, func(m wire.Message) []wire.Message {
		got = nil
		data := wire.MAD(m)
		server.Receive(n.now, cm.MAD{
			Node: client.number, Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), Data: data[:],
		})
		n.run(latency)
		return got
	}
}

// fromServer returns a message from the server of pair to the client.
func fromServer(data []byte) cm.MAD {
	return cm.MAD{Node: 2, Src: netip.MustParseAddr("10.0.0.2"), Dst: netip.MustParseAddr("10.0.0.1"), Data: data}
}

// one returns the only message, of a type.
func one[M wire.Message](t testing.TB, messages []wire.Message) M {
	t.Helper()
	require.Len(t, messages, 1)
	require.IsType(t, *new(M), messages[0])
	return messages[0].(M)
}

// TestBadRequest gives a server requests that no manager sends.
func TestBadRequest(t *testing.T) {
	for name, test := range map[string]struct {
		spoil  func(*wire.REQ)
		reason wire.RejectReason
	}{
		"GID of another host": {func(m *wire.REQ) { m.Primary.RemoteGID[15]++; m.Primary.RemoteGID[14]++ }, wire.RejectGID},
		"no GID":              {func(m *wire.REQ) { m.Primary.RemoteGID = wire.GID{} }, wire.RejectGID},
		"version of header":   {func(m *wire.REQ) { m.PrivateData[0] = 1 }, wire.RejectConsumer},
		"version of IP":       {func(m *wire.REQ) { m.PrivateData[1] = 0x50 }, wire.RejectConsumer},
		"address of another":  {func(m *wire.REQ) { m.PrivateData[35] = 77 }, wire.RejectConsumer},
		"reliable datagram":   {func(m *wire.REQ) { m.Transport = 2 }, wire.RejectConsumer},
		"XRC":                 {func(m *wire.REQ) { m.Transport, m.ExtendedTransport = 3, 1 }, wire.RejectConsumer},
		"other extension":     {func(m *wire.REQ) { m.Transport, m.ExtendedTransport = 3, 2 }, wire.RejectConsumer},
		"service of others":   {func(m *wire.REQ) { m.ServiceID |= 1 << 40 }, wire.RejectServiceID},
	} {
		t.Run(name, func(t *testing.T) {
			_, server, ask := asked(t)
			req := requestTo(5, 77, 0x99)
			test.spoil(req)
			rej := one[*wire.REJ](t, ask(req))
			require.Equal(t, test.reason, rej.Reason)
			require.Equal(t, uint32(77), rej.RemoteCommID)
			require.Equal(t, wire.AnswersREQ, rej.Rejected)
			require.Empty(t, server.log)
		})
	}
}

// TestUnknown gives a server messages that belong to no connection, or not to
// this one.
func TestUnknown(t *testing.T) {
	_, _, ask := asked(t)
	require.Empty(t, ask(&wire.RTU{LocalCommID: 7, RemoteCommID: 8}))
	require.Empty(t, ask(&wire.DREP{LocalCommID: 7, RemoteCommID: 8}))
	require.Empty(t, ask(&wire.MRA{LocalCommID: 7, RemoteCommID: 8}))
	require.Empty(t, ask(&wire.REJ{LocalCommID: 7, RemoteCommID: 8}))
	require.Empty(t, ask(&wire.SIDRRep{RequestID: 8}))
	drep := one[*wire.DREP](t, ask(&wire.DREQ{Header: wire.Header{TID: 9}, LocalCommID: 7, RemoteCommID: 8}))
	require.Equal(t, &wire.DREP{Header: wire.Header{TID: 9}, LocalCommID: 8, RemoteCommID: 7}, drep)
	rej := one[*wire.REJ](t, ask(&wire.REP{Header: wire.Header{TID: 9}, LocalCommID: 7, RemoteCommID: 8}))
	require.Equal(t, &wire.REJ{
		Header: wire.Header{TID: 9}, LocalCommID: 8, RemoteCommID: 7, Rejected: wire.AnswersREP, Reason: wire.RejectCommID,
	}, rej)
}

// TestStale has a peer that has forgotten a connection: it uses the queue pair
// for another one.
func TestStale(t *testing.T) {
	n, server, ask := asked(t)
	accepting(server)
	rep := one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	server.last(established)

	answers := ask(requestTo(5, 78, 0x99))
	require.Len(t, answers, 2)
	require.Equal(t, wire.RejectStale, answers[0].(*wire.REJ).Reason)
	require.Equal(t, uint32(78), answers[0].(*wire.REJ).RemoteCommID)
	require.Equal(t, uint32(77), answers[1].(*wire.DREQ).RemoteCommID)
	require.Equal(t, uint32(0x99), answers[1].(*wire.DREQ).RemoteQPN)
	require.Empty(t, ask(&wire.DREP{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	server.last(disconnected)

	// As soon as it is disconnected, the queue pair is free for another
	// connection.
	one[*wire.REP](t, ask(requestTo(5, 79, 0x99)))
	// The same number of another peer is another connection.
	one[*wire.REP](t, ask(requestTo(6, 79, 0x99)))
	n.run(3 * time.Second)
	require.Contains(t, server.log, "TIMEWAIT_EXIT")
}

// TestQueuePairTwice connects with the queue pair of a connection that the
// client still has.
func TestQueuePairTwice(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	accepting(server)
	first := connect(client)
	n.run(soon)
	second := client.resolve(tcp, serverAddr)
	require.NoError(t, second.Connect(n.now, param(0x10001, "")))
	n.run(soon)
	require.Equal(t, []string{"REJECTED(10)", "DISCONNECTED"}, client.log[len(client.log)-2:])
	require.Same(t, first, client.last(disconnected).ID)
	require.NoError(t, first.Disconnect(n.now))
	n.settle()
	require.Same(t, first, client.last(timewaitExit).ID)
	require.Len(t, client.log, 8, "the second has none")
	server.last(timewaitExit)
}

// TestBadAcceptance gives a client acceptances with the numbers of another
// connection.
func TestBadAcceptance(t *testing.T) {
	n, client, _ := pair(t)
	var got []wire.Message
	n.fault = func(m wire.Message) []time.Duration {
		got = append(got, m)
		return nil
	}
	give := func(m wire.Message) []wire.Message {
		got = nil
		data := wire.MAD(m)
		client.Receive(n.now, fromServer(data[:]))
		n.run(0)
		return got
	}
	client.on[connResponse] = func(e *cm.Event) { require.NoError(t, e.ID.Establish(n.now)) }
	var ids [2]*cm.ID
	var numbers [2]uint32
	for i := range ids {
		ids[i] = client.resolve(tcp, serverAddr)
		require.NoError(t, ids[i].Connect(n.now, param(uint32(i+1), "")))
		numbers[i] = got[i].(*wire.REQ).LocalCommID
	}
	rtu := one[*wire.RTU](t, give(&wire.REP{LocalCommID: 7, RemoteCommID: numbers[0], LocalCAGUID: 5, LocalQPN: 99}))
	require.Equal(t, &wire.RTU{Header: rtu.Header, LocalCommID: numbers[0], RemoteCommID: 7}, rtu)
	require.Empty(t, give(&wire.REP{LocalCommID: 7, RemoteCommID: numbers[1], LocalCAGUID: 5, LocalQPN: 98}), "number of the first")
	require.Empty(t, give(&wire.REP{LocalCommID: 8, RemoteCommID: numbers[0], LocalCAGUID: 5, LocalQPN: 98}), "accepted twice")
	require.Equal(t, rtu, one[*wire.RTU](t, give(&wire.REP{LocalCommID: 7, RemoteCommID: numbers[0], LocalCAGUID: 5, LocalQPN: 99})), "again")

	answers := give(&wire.REP{LocalCommID: 8, RemoteCommID: numbers[1], LocalCAGUID: 5, LocalQPN: 99})
	require.Len(t, answers, 2, "queue pair of the first, which the peer has forgotten")
	require.Equal(t, []any{wire.RejectStale, wire.AnswersREP, uint32(8)},
		[]any{answers[0].(*wire.REJ).Reason, answers[0].(*wire.REJ).Rejected, answers[0].(*wire.REJ).RemoteCommID})
	require.Equal(t, uint32(7), answers[1].(*wire.DREQ).RemoteCommID)
	answers = give(&wire.REP{LocalCommID: 9, RemoteCommID: numbers[1], LocalCAGUID: 5, LocalQPN: 99})
	require.Len(t, answers, 1, "the first is about to end")

	require.Empty(t, give(&wire.DREQ{LocalCommID: 7, RemoteCommID: numbers[0], RemoteQPN: 1}))
	require.Same(t, ids[0], client.last(disconnected).ID)
	rej := &wire.REJ{LocalCommID: 7, RemoteCommID: numbers[0], Rejected: wire.AnswersOther, Reason: wire.RejectConsumer}
	require.Empty(t, give(rej), "nothing to reject any more")
	client.last(disconnected)
	one[*wire.RTU](t, give(&wire.REP{LocalCommID: 8, RemoteCommID: numbers[1], LocalCAGUID: 6, LocalQPN: 99}))
	require.Same(t, ids[1], client.last(connResponse).ID)
}

// TestTimeWait repeats messages of a connection that has ended.
func TestTimeWait(t *testing.T) {
	n, server, ask := asked(t)
	accepting(server)
	rep := one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
	require.Equal(t, rep, one[*wire.REP](t, ask(requestTo(5, 77, 0x99))), "the same answer again")
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	require.Empty(t, ask(requestTo(5, 77, 0x99)), "established")

	wrong := &wire.DREQ{LocalCommID: 77, RemoteCommID: rep.LocalCommID, RemoteQPN: rep.LocalQPN + 1}
	require.Empty(t, ask(&wire.MRA{LocalCommID: 77, RemoteCommID: rep.LocalCommID, Received: wire.AnswersREP, ServiceTimeout: 8}))
	n.run(time.Minute)
	require.Empty(t, ask(wrong), "queue pair of another")
	server.last(established)
	dreq := &wire.DREQ{Header: wire.Header{TID: 4}, LocalCommID: 77, RemoteCommID: rep.LocalCommID, RemoteQPN: rep.LocalQPN}
	require.Empty(t, ask(dreq), "the program has to agree")
	require.Empty(t, ask(dreq))
	id := server.last(disconnected).ID
	require.NoError(t, id.Disconnect(n.now))
	n.run(latency)
	drep := one[*wire.DREP](t, ask(dreq))
	require.Equal(t, &wire.DREP{Header: wire.Header{TID: 4}, LocalCommID: rep.LocalCommID, RemoteCommID: 77}, drep)
	id.Destroy(n.now)
	require.Equal(t, drep, one[*wire.DREP](t, ask(dreq)), "the ID is destroyed")
	require.Equal(t, wire.RejectStale, one[*wire.REJ](t, ask(requestTo(5, 77, 0x99))).Reason)
	require.Equal(t, []string{"CONNECT_REQUEST", "ESTABLISHED", "DISCONNECTED"}, server.log)
}

// TestDestroyed repeats a request whose ID is destroyed while the connection
// lasts.
func TestDestroyed(t *testing.T) {
	n, server, ask := asked(t)
	accepting(server)
	rep := one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	server.last(established).ID.Destroy(n.now)
	require.Equal(t, wire.RejectStale, one[*wire.REJ](t, ask(requestTo(5, 77, 0x99))).Reason)
	n.run(3 * time.Second)
	one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
}

// TestNobodyAgrees has two sides that want the end at once; neither agrees but
// by destroying.
func TestNobodyAgrees(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	accepting(server)
	id := connect(client)
	n.run(soon)
	child := server.last(established).ID
	require.NoError(t, id.Disconnect(n.now))
	require.NoError(t, child.Disconnect(n.now))
	n.run(time.Hour)
	require.Equal(t, []string{"REQ", "REP", "RTU", "DREQ", "DREQ"}, n.sent)
	require.Same(t, id, client.last(disconnected).ID)
	require.Same(t, child, server.last(disconnected).ID)
	child.Destroy(n.now)
	n.settle()
	require.Equal(t, "DREP", n.sent[5])
	client.last(timewaitExit)
	require.Equal(t, []string{"CONNECT_REQUEST", "ESTABLISHED", "DISCONNECTED"}, server.log)
}

// TestWrongEstablish has a program that answers a request as if it were an
// acceptance.
func TestWrongEstablish(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	server.on[connRequest] = func(e *cm.Event) { require.ErrorIs(t, e.ID.Establish(n.now), syscall.EINVAL) }
	connect(client)
	n.run(soon)
	require.Equal(t, 28, client.last(rejected).Status)
}

// TestDelayOnce gives a client two announcements that the answer takes longer:
// only the first counts.
func TestDelayOnce(t *testing.T) {
	n, client, _ := pair(t)
	var req *wire.REQ
	n.fault = func(m wire.Message) []time.Duration {
		req = m.(*wire.REQ)
		return nil
	}
	connect(client)
	mra := func(received wire.Answered, service uint8) {
		data := wire.MAD(&wire.MRA{LocalCommID: 7, RemoteCommID: req.LocalCommID, Received: received, ServiceTimeout: service})
		client.Receive(n.now, fromServer(data[:]))
	}
	mra(wire.AnswersREP, 31) // of something else
	mra(wire.AnswersREQ, 20)
	n.run(5 * time.Second)
	mra(wire.AnswersREQ, 31)
	n.run(time.Second)
	require.Equal(t, 1, n.count("REQ"))
	n.run(time.Second)
	require.Equal(t, 2, n.count("REQ"), "4 s, and 2 s for the way")
}

// TestRejectTimeout takes a REQ back, which names the connection by the
// sender's GUID.
func TestRejectTimeout(t *testing.T) {
	n, server, ask := asked(t)
	require.Empty(t, ask(requestTo(5, 77, 0x99)))
	rej := &wire.REJ{LocalCommID: 77, Rejected: wire.AnswersOther, Reason: wire.RejectTimeout, InfoLength: 8}
	rej.Info[7] = 6
	require.Empty(t, ask(rej))
	mra := one[*wire.MRA](t, ask(requestTo(5, 77, 0x99)))
	require.Equal(t, uint8(24), mra.ServiceTimeout)
	rej.Info[7] = 5
	require.Empty(t, ask(rej))
	id := server.last(connRequest).ID
	require.ErrorIs(t, id.Accept(n.now, param(1, "")), syscall.EINVAL)
	require.NoError(t, id.Disconnect(n.now))
	id.Destroy(n.now)
	require.Equal(t, []string{"CONNECT_REQUEST"}, server.log, "what was not accepted reports nothing")
}

// TestConnectionRejectedLate has a peer that rejects an established connection.
func TestConnectionRejectedLate(t *testing.T) {
	n, server, ask := asked(t)
	accepting(server)
	rep := one[*wire.REP](t, ask(requestTo(5, 77, 0x99)))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 77, RemoteCommID: rep.LocalCommID}))
	rej := &wire.REJ{LocalCommID: 77, RemoteCommID: rep.LocalCommID, Rejected: wire.AnswersOther, Reason: wire.RejectConsumer}
	require.Empty(t, ask(rej))
	require.Equal(t, 28, server.last(rejected).Status)
	require.Empty(t, ask(rej), "again")
	n.settle()
	require.Equal(t, []string{"CONNECT_REQUEST", "ESTABLISHED", "REJECTED(28)"}, server.log)

	// The same while it ends.
	rep = one[*wire.REP](t, ask(requestTo(5, 78, 0x99)))
	require.Empty(t, ask(&wire.RTU{LocalCommID: 78, RemoteCommID: rep.LocalCommID}))
	require.NoError(t, server.last(established).ID.Disconnect(n.now))
	require.Empty(t, ask(&wire.REJ{LocalCommID: 78, RemoteCommID: rep.LocalCommID, Rejected: wire.AnswersOther, Reason: wire.RejectConsumer}))
	server.last(rejected)
	n.settle()
	require.Equal(t, 1, n.count("DREQ"))
}

func TestNotify(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	n.fault = func(m wire.Message) []time.Duration {
		if m.Attribute() == wire.AttrRTU {
			return nil
		}
		return []time.Duration{latency}
	}
	id := connect(client)
	require.ErrorIs(t, id.Notify(libibverbs.IBV_EVENT_COMM_EST), syscall.EINVAL)
	n.run(10 * latency)
	child := server.last(connRequest).ID
	require.ErrorIs(t, child.Notify(libibverbs.IBV_EVENT_COMM_EST), syscall.EINVAL)
	require.NoError(t, child.Accept(n.now, param(2, "")))
	n.run(10 * latency)
	require.ErrorIs(t, child.Notify(libibverbs.IBV_EVENT_PATH_MIG), syscall.EINVAL)
	require.NoError(t, child.Notify(libibverbs.IBV_EVENT_COMM_EST))
	n.run(0)
	require.Same(t, child, server.last(established).ID)
	require.ErrorIs(t, child.Notify(libibverbs.IBV_EVENT_COMM_EST), syscall.EISCONN)
	require.ErrorIs(t, id.Notify(libibverbs.IBV_EVENT_COMM_EST), syscall.EISCONN)
	n.settle()
	require.Equal(t, 1, n.count("REP"))
}

func TestBacklog(t *testing.T) {
	n, client, server := pair(t)
	listener := server.id(tcp)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, listener.Listen(2))
	server.channel = server.NewChannel(func(events int) { server.waiting += events })
	require.NoError(t, listener.Migrate(server.channel))
	for i := range 3 {
		require.NoError(t, client.resolve(tcp, serverAddr).Connect(n.now, param(uint32(0x10001+i), "")))
	}
	n.run(time.Second)
	require.Equal(t, 2, server.channel.Len())
	require.NotContains(t, client.log, "REJECTED(28)", "the third is dropped, and may come again")
	server.take()
	n.run(7 * time.Second)
	require.Equal(t, 2, server.channel.Len(), "it has come again")
	server.take()
	server.take()
	require.Equal(t, []string{"CONNECT_REQUEST", "CONNECT_REQUEST", "CONNECT_REQUEST"}, server.log)
	require.Zero(t, server.channel.Len())
	server.take()
}

func TestSIDR(t *testing.T) {
	n, client, server := pair(t)
	listener := server.listen(udp, serverAddr)
	id := client.resolve(udp, serverAddr)
	require.ErrorIs(t, id.Connect(n.now, param(1, strings.Repeat("x", 181))), syscall.EINVAL)
	data := strings.Repeat("x", 180)
	require.NoError(t, id.Connect(n.now, param(0x10001, data)))
	n.run(time.Second)
	request := server.last(connRequest)
	require.Equal(t, cm.UDParam{PrivateData: []byte(data)}, request.UD)
	require.Same(t, listener, request.Listen)
	require.Equal(t, libibverbs.IBV_QPT_UD, request.ID.QPType())
	require.Equal(t, id.LocalAddr(), request.ID.PeerAddr())
	attr, mask, err := request.ID.InitQPAttr(libibverbs.IBV_QPS_INIT)
	require.NoError(t, err)
	require.Equal(t, libibverbs.IBV_QP_STATE|libibverbs.IBV_QP_PKEY_INDEX|libibverbs.IBV_QP_PORT|libibverbs.IBV_QP_QKEY, mask)
	require.Equal(t, uint32(librdmacm.RDMA_UDP_QKEY), attr.Qkey)
	require.ErrorIs(t, request.ID.Establish(n.now), syscall.EINVAL)
	require.NoError(t, request.ID.Accept(n.now, param(0x20002, "there")))
	require.ErrorIs(t, request.ID.Accept(n.now, param(0x20002, "there")), syscall.EINVAL, "twice")
	n.run(time.Second)
	e := client.last(established)
	require.Equal(t, pad("there", 136), e.UD.PrivateData)
	require.Equal(t, []uint32{0x20002, librdmacm.RDMA_UDP_QKEY}, []uint32{e.UD.QPNum, e.UD.QKey})
	require.Equal(t, [16]byte(wire.GIDOf(netip.MustParseAddr("10.0.0.2"))), *e.UD.AhAttr.Grh.Dgid.Raw())
	require.Equal(t, []uint8{1, 1, 64}, []uint8{e.UD.AhAttr.IsGlobal, e.UD.AhAttr.Grh.SgidIndex, e.UD.AhAttr.Grh.HopLimit})
	require.Equal(t, []string{"CONNECT_REQUEST"}, server.log, "the server hears nothing more")
	require.NoError(t, id.Disconnect(n.now), "nothing to do")
	require.Equal(t, []string{"SIDR_REQ", "SIDR_REP"}, n.sent)

	for name, test := range map[string]struct {
		to     string
		react  func(*cm.Event)
		status int
		data   string
	}{
		"no listener": {to: "10.0.0.2:7175", status: 1},
		"refused": {to: serverAddr, status: 2, data: "no", react: func(e *cm.Event) {
			require.NoError(t, e.ID.Reject(n.now, 0, []byte("no")))
		}},
		"too much data": {to: serverAddr, status: 2, react: func(e *cm.Event) {
			require.ErrorIs(t, e.ID.Accept(n.now, param(1, strings.Repeat("x", 137))), syscall.EINVAL)
		}},
		"another address": {to: "10.0.0.3:7174", status: 2},
	} {
		t.Run(name, func(t *testing.T) {
			server.on[connRequest] = test.react
			require.NoError(t, client.resolve(udp, test.to).Connect(n.now, param(3, "")))
			n.run(time.Second)
			e := client.last(unreachable)
			require.Equal(t, test.status, e.Status)
			require.Equal(t, pad(test.data, 136), e.UD.PrivateData)
		})
	}
}

// TestSIDRBacklog refuses a request for which a listener has no room: it would
// have to come from a new ID anyway.
func TestSIDRBacklog(t *testing.T) {
	n, client, server := pair(t)
	listener := server.id(udp)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, listener.Listen(1))
	require.NoError(t, listener.Migrate(server.NewChannel(func(int) {})))
	for range 2 {
		require.NoError(t, client.resolve(udp, serverAddr).Connect(n.now, param(3, "")))
	}
	n.run(time.Second)
	require.Equal(t, 2, client.last(unreachable).Status)
}

// TestSIDRQKey takes an answer whose Q_Key is none, or not the ID's.
func TestSIDRQKey(t *testing.T) {
	for name, qkey := range map[string]uint32{"none": 0, "another": 5} {
		t.Run(name, func(t *testing.T) {
			n, client, _ := pair(t)
			var asked *wire.SIDRReq
			n.fault = func(m wire.Message) []time.Duration {
				asked = m.(*wire.SIDRReq)
				return nil
			}
			id := client.resolve(udp, serverAddr)
			_, _, err := id.InitQPAttr(libibverbs.IBV_QPS_INIT) // gives it the default one
			require.NoError(t, err)
			require.NoError(t, id.Connect(n.now, param(3, "")))
			data := wire.MAD(&wire.SIDRRep{RequestID: asked.RequestID, QPN: 4, QKey: qkey})
			client.Receive(n.now, fromServer(data[:]))
			client.Receive(n.now, fromServer(data[:]))
			n.run(time.Second)
			require.Equal(t, -int(syscall.EINVAL), client.last(addrError).Status)
			require.Equal(t, []string{"ADDR_RESOLVED", "ROUTE_RESOLVED", "ADDR_ERROR(-22)"}, client.log)
		})
	}
}

func TestAckTimeout(t *testing.T) {
	for _, test := range []struct{ delay, lifeTime, want uint8 }{
		{0, 18, 19},
		{15, 18, 19},
		{17, 18, 19},
		{18, 18, 20},
		{19, 18, 20},
		{20, 18, 21},
		{21, 18, 21},
		{31, 18, 31},
		{0, 0, 2},
		{0, 1, 2},
		{31, 31, 31},
		{0, 255, 31},
	} {
		require.Equal(t, test.want, cm.AckTimeout(test.delay, test.lifeTime), "%+v", test)
	}
}

// TestAckTimeoutOption sets the queue pair's timeout, which the path's lifetime
// follows.
func TestAckTimeoutOption(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	accepting(server)
	id := client.id(tcp)
	require.NoError(t, id.SetOption(librdmacm.RDMA_OPTION_ID, librdmacm.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{12}))
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, id.ResolveRoute(time.Second))
	path, _ := id.Path()
	require.Equal(t, uint8(11), path.PacketLifeTime)
	require.NoError(t, id.Connect(n.now, param(1, "")))
	n.run(time.Second)
	attr, _, err := id.InitQPAttr(libibverbs.IBV_QPS_RTS)
	require.NoError(t, err)
	require.Equal(t, uint8(12), attr.Timeout)
	attr, _, err = server.last(connRequest).ID.InitQPAttr(libibverbs.IBV_QPS_RTS)
	require.NoError(t, err)
	require.Equal(t, uint8(15), attr.Timeout, "the device's delay is longer")

	// The active side reckons with the other device's delay.
	port := server.ports[netip.MustParseAddr("10.0.0.2")]
	port.AckDelay = 20
	server.ports[netip.MustParseAddr("10.0.0.2")] = port
	id = connect(client)
	n.run(time.Second)
	attr, _, err = id.InitQPAttr(libibverbs.IBV_QPS_RTS)
	require.NoError(t, err)
	require.Equal(t, uint8(21), attr.Timeout)
}

// TestOneNode connects a node to itself.
func TestOneNode(t *testing.T) {
	n := newNetwork(t)
	p := n.node(1, "10.0.0.2").program("both")
	listener := p.listen(tcp, serverAddr)
	ending(p)
	accepting(p)
	id := connect(p)
	n.run(time.Second)
	require.NoError(t, id.Disconnect(n.now))
	n.settle()
	listener.Destroy(n.now)
	n.empty()
	require.Equal(t, []string{
		"ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_REQUEST", "CONNECT_RESPONSE", "ESTABLISHED",
		"DISCONNECTED", "DISCONNECTED", "TIMEWAIT_EXIT", "TIMEWAIT_EXIT",
	}, p.log)
}

// TestMADsAreNotShared checks that a receiver may keep what it was sent.
func TestMADsAreNotShared(t *testing.T) {
	n, client, server := pair(t)
	server.listen(tcp, serverAddr)
	var first []byte
	keep := &recorder{client.node, func(mad cm.MAD) {
		if first == nil {
			first = mad.Data
		}
	}}
	m := cm.New(cm.Config{Host: keep, GUID: 1, Random: func() uint32 { return 9 }})
	id, err := m.NewID(m.NewChannel(func(int) {}), tcp, 0, nil)
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(netip.MustParseAddrPort("10.0.0.1:5"), netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, id.ResolveRoute(time.Second))
	require.NoError(t, id.Connect(n.now, param(1, "")))
	before := bytes.Clone(first)
	m.Advance(time.Minute)
	id.Destroy(time.Minute)
	require.Equal(t, before, first)
}

// TestConnectXRC connects an end of the type XRC_SEND to one of the type
// XRC_RECV: what the messages say, and the attributes of both queue pairs.
func TestConnectXRC(t *testing.T) {
	n, client, server := pair(t)
	var sent []wire.Message
	n.fault = func(m wire.Message) []time.Duration {
		sent = append(sent, m)
		return []time.Duration{0}
	}
	listener, err := server.NewID(server.channel, librdmacm.RDMA_PS_IB, libibverbs.IBV_QPT_XRC_RECV, "server")
	require.NoError(t, err)
	require.NoError(t, listener.Bind(netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, listener.Listen(0))
	id, err := client.NewID(client.channel, librdmacm.RDMA_PS_IB, libibverbs.IBV_QPT_XRC_SEND, "client")
	require.NoError(t, err)
	require.NoError(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
	require.NoError(t, id.ResolveRoute(time.Second))
	require.NoError(t, id.Connect(n.now, param(0x10001, "")))
	n.run(soon)
	request := server.last(connRequest)
	require.Equal(t, libibverbs.IBV_QPT_XRC_RECV, request.ID.QPType())
	require.EqualValues(t, 0x10001, request.Conn.QPNum)
	require.NoError(t, request.ID.Accept(n.now, param(0x20002, "")))
	n.run(soon)
	response := client.last(connResponse)
	require.EqualValues(t, 0x20002, response.Conn.QPNum)
	require.True(t, response.Conn.SRQ)

	req, rep := sent[0].(*wire.REQ), sent[1].(*wire.REP)
	require.Equal(t, []uint8{3, 1, 0, 0, 0}, []uint8{
		req.Transport, req.ExtendedTransport, req.ResponderResources, req.RetryCount, req.RNRRetryCount,
	})
	require.EqualValues(t, 0x10001, req.LocalQPN)
	require.Equal(t, []uint32{0, 0x20002}, []uint32{rep.LocalQPN, rep.LocalEECN})

	const rtr = libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_AV | libibverbs.IBV_QP_PATH_MTU | libibverbs.IBV_QP_DEST_QPN | libibverbs.IBV_QP_RQ_PSN
	for name, tt := range map[string]struct {
		id         *cm.ID
		peer       uint32
		toRTR, rts libibverbs.QpAttrMask
	}{
		"client": {id, 0x20002, rtr, libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN | libibverbs.IBV_QP_TIMEOUT | libibverbs.IBV_QP_RETRY_CNT |
			libibverbs.IBV_QP_RNR_RETRY | libibverbs.IBV_QP_MAX_QP_RD_ATOMIC},
		"server": {
			request.ID, 0x10001, rtr | libibverbs.IBV_QP_MAX_DEST_RD_ATOMIC | libibverbs.IBV_QP_MIN_RNR_TIMER,
			libibverbs.IBV_QP_STATE | libibverbs.IBV_QP_SQ_PSN | libibverbs.IBV_QP_TIMEOUT,
		},
	} {
		attr, mask, err := tt.id.InitQPAttr(libibverbs.IBV_QPS_RTR)
		require.NoError(t, err, name)
		require.Equal(t, tt.toRTR, mask, name)
		require.Equal(t, tt.peer, attr.DestQpNum, name)
		_, mask, err = tt.id.InitQPAttr(libibverbs.IBV_QPS_RTS)
		require.NoError(t, err, name)
		require.Equal(t, tt.rts, mask, name)
	}
	for name, qpType := range map[string]libibverbs.QpType{"RC": libibverbs.IBV_QPT_RC, "UC": libibverbs.IBV_QPT_UC} {
		other, err := client.NewID(client.channel, librdmacm.RDMA_PS_IB, qpType, "client")
		require.NoError(t, err)
		require.NoError(t, other.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(serverAddr)))
		require.NoError(t, other.ResolveRoute(time.Second))
		require.NoError(t, other.Connect(n.now, param(0x10003, "")))
		n.run(soon)
		require.EqualValues(t, wire.RejectConsumer, client.last(rejected).Status, name)
	}
}
