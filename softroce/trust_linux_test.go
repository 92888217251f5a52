// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// The tests of this file have a host in a network namespace that attacks two
// others, one test for each row of the table in docs/softroce.md.

// ends are all messages that could end, hold up or establish the connection
// between the client and the server, or keep the client's next one from being
// made, for one that knows all of its numbers.
func (h *hosts) ends(s seen, toClient bool) (all []*wire.Packet) {
	mine, yours, guid, yourQPN, myQPN := s.req.LocalCommID, s.rep.LocalCommID, s.req.LocalCAGUID, s.serverQPN, s.clientQPN
	if toClient {
		mine, yours, guid, yourQPN, myQPN = yours, mine, s.rep.LocalCAGUID, myQPN, yourQPN
	}
	rej := func(answers wire.Answered, reason wire.RejectReason) *wire.REJ {
		m := &wire.REJ{LocalCommID: mine, RemoteCommID: yours, Rejected: answers, Reason: reason, InfoLength: 8}
		binary.BigEndian.PutUint64(m.Info[:], guid)
		return m
	}
	again := *s.req
	again.LocalCommID++
	for _, m := range []wire.Message{
		rej(wire.AnswersREQ, wire.RejectStale), rej(wire.AnswersREP, wire.RejectConsumer), rej(wire.AnswersOther, wire.RejectTimeout),
		&wire.DREP{LocalCommID: mine, RemoteCommID: yours}, &wire.RTU{LocalCommID: mine, RemoteCommID: yours},
		&wire.MRA{LocalCommID: mine, RemoteCommID: yours, Received: wire.AnswersREP, ServiceTimeout: 31},
		&wire.REP{LocalCommID: mine + 1, RemoteCommID: yours, LocalCAGUID: guid, LocalQPN: myQPN},
		&wire.SIDRRep{RequestID: yours}, &again,
		&wire.DREQ{LocalCommID: mine, RemoteCommID: yours, RemoteQPN: yourQPN},
	} {
		all = append(all, messagePacket(m))
	}
	return all
}

// A host that sends from its own address, and knows all numbers of a connection
// of others.
func TestHostOfItsOwn(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *hosts) {
		own, client := attackerAddrs[h.which], clientAddrs[h.which]
		s := h.seen()
		h.works()
		h.send(own, false, h.ends(s, false)...)
		h.send(own, true, h.ends(s, true)...)
		h.works()
		// In the name of the client's device: with its queue pairs, and those
		// that it will have.
		for i := range uint32(64) {
			req := h.request(own, 1000+i)
			req.LocalCAGUID, req.LocalQPN = s.req.LocalCAGUID, s.clientQPN+i-32
			h.send(own, false, messagePacket(req))
		}
		h.works()
		// With the addresses of others in the path and in the private data.
		server := serverAddrs[h.which]
		group, all, none := netip.MustParseAddr("224.0.0.5"), netip.MustParseAddr("255.255.255.255"), netip.IPv4Unspecified()
		if h.which == 1 {
			group, all, none = netip.MustParseAddr("ff02::5"), netip.MustParseAddr("ff02::1"), netip.IPv6Unspecified()
		}
		for i, a := range []netip.Addr{client, server, group, all, none, netip.MustParseAddr("203.0.113.7")} {
			req := h.request(own, 2000+uint32(i))
			wire.IPHeader{Src: a, Dst: server, SrcPort: 1}.Put((*[wire.IPHeaderLen]byte)(req.PrivateData[:]))
			h.send(own, false, messagePacket(req))
			req = h.request(own, 3000+uint32(i))
			req.Primary.LocalGID = wire.GIDOf(a)
			h.send(own, false, messagePacket(req))
			h.send(own, false, messagePacket(h.request(a, 4000+uint32(i)))) // both
		}
		h.works()
		// Its packets arrive: a request in its own name is one.
		h.send(own, false, messagePacket(h.request(own, 5000)))
		h.server.Eventually("has the request", func() bool { return len(h.requests()) > 1+64 })
		from := map[netip.Addr]int{}
		for _, a := range h.requests() {
			from[a]++
		}
		require.Equal(t, map[netip.Addr]int{client: 1, own: 64 + 1}, from, "those that the attacker has asked for in its own name")
		h.works()
	})
}

// The peer of a connection: it asks for the longest times, and then answers
// nothing. The server's other connections go on.
func TestHostIsAPeer(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *hosts) {
		own := attackerAddrs[h.which]
		for i := range uint32(200) {
			h.send(own, false, messagePacket(h.request(own, 100+i)))
		}
		h.works()
		h.server.Eventually("has the requests", func() bool { return len(h.requests()) > 100 })
		h.works()
		h.server.Eventually("gives up on the peer", func() bool { return strings.Count(h.server.Stdout(), "end of") > 100 })
		h.works()
	})
}

// A host that sends with the addresses of others, and guesses the numbers of
// their connections.
func TestHostGuesses(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *hosts) {
		s := h.seen()
		random := rand.New(rand.NewPCG(7, 7))
		client, server := clientAddrs[h.which], serverAddrs[h.which]
		for range 50 {
			guess := s
			req, rep := *s.req, *s.rep
			guess.req, guess.rep = &req, &rep
			// It may even know all but the numbers of the connection.
			req.LocalCommID, rep.LocalCommID = random.Uint32(), random.Uint32()
			packets := h.ends(guess, false)
			packets = slices.DeleteFunc(packets, func(p *wire.Packet) bool { // in the client's name it may ask, with a queue pair that it guesses
				m, err := wire.ParseMAD(p.Payload[0])
				require.NoError(t, err)
				_, is := m.(*wire.REQ)
				return is
			})
			again := h.request(client, random.Uint32())
			again.LocalCAGUID, again.LocalQPN = s.req.LocalCAGUID, random.Uint32N(1<<24)
			h.send(client, false, append(packets, messagePacket(again))...)
			// Nor does it know the numbers of packets.
			h.send(client, false, &wire.Packet{
				Opcode: wire.RCSendOnly, DestQP: s.serverQPN, PKey: wire.DefaultPKey, PSN: wire.PSN(random.Uint32N(1 << 24)), AckReq: true,
				Payload: [][]byte{[]byte("forged")},
			}, &wire.Packet{
				Opcode: wire.RCSendOnly, DestQP: random.Uint32N(1 << 24), PKey: wire.DefaultPKey, PSN: s.toServer.Add(0),
				Payload: [][]byte{[]byte("forged")},
			})
		}
		h.works()
		// Addresses that no host can have, that of the server itself, and one
		// without a way back.
		impossible := []netip.Addr{server, netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.77")}
		if h.which == 1 {
			impossible = []netip.Addr{server, netip.IPv6Loopback(), netip.MustParseAddr("2001:db8:77::1")}
		}
		for _, a := range impossible {
			for i := range uint32(3) {
				h.send(a, false, messagePacket(h.request(a, 6000+i)))
			}
		}
		h.works()
		require.NotContains(t, h.server.Stdout(), "forged")
		for _, a := range h.requests() {
			require.Equal(t, client, a)
		}
	})
}

// A host that sees all packets and sends with the addresses of others can do
// what the peer can. This also shows that packets of the attacker arrive, and
// do what they say, if nothing in them is wrong.
func TestHostSeesAll(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *hosts) {
		s := h.seen()
		h.works()
		ends := h.ends(s, true)
		h.send(serverAddrs[h.which], true, ends[len(ends)-1])
		require.Equal(t, 2, h.client.Wait(), "a DREQ in the name of the server ends the connection")
		require.False(t, h.server.Ended())
	})
}

// A host that sends as much as it can, with many addresses.
func TestHostFloods(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *hosts) {
		random := rand.New(rand.NewPCG(8, 8))
		from := func() netip.Addr {
			if h.which == 1 {
				return netip.MustParseAddr(fmt.Sprintf("2001:db8:18::%x", 100+random.IntN(50)))
			}
			return netip.AddrFrom4([4]byte{198, 18, 0, byte(100 + random.IntN(50))})
		}
		for i := range 40 {
			src := from()
			var packets []*wire.Packet
			for range 100 {
				packets = append(packets, messagePacket(h.request(src, random.Uint32())))
			}
			h.send(src, false, packets...)
			if i%10 == 9 {
				h.works()
			}
		}
		h.works()
	})
}
