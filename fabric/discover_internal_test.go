// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// discover discovers a fake fabric.
func discover(t *testing.T, from fakePort, config Config) (*Topology, *fakeTransport) {
	t.Helper()
	f := &fakeFabric{from: from}
	c, transport := newFake(t, config, f.answer)
	topology, err := c.Discover(t.Context())
	require.NoError(t, err)
	return topology, transport
}

// links returns the links of a topology as text.
func links(t *Topology) []string {
	var all []string
	for a, b := range t.Links() {
		all = append(all, fmt.Sprintf("%x.%d-%x.%d", uint64(a.Node.GUID), a.Number, uint64(b.Node.GUID), b.Number))
	}
	return all
}

// routes returns the routes of the nodes, by GUID.
func routes(t *Topology) map[GUID]string {
	all := map[GUID]string{}
	for _, n := range t.Nodes {
		all[n.GUID] = n.Route.String()
	}
	return all
}

func TestDiscover(t *testing.T) {
	a, b := newAdapter(0xa, 2), newAdapter(0xb, 2)
	s1, s2 := newSwitch(0x1, 4), newSwitch(0x2, 4)
	connect(a, 1, s1, 1)
	connect(a, 2, s2, 1) // the local node's other port
	connect(b, 1, s2, 2)
	connect(s1, 3, s2, 3)
	connect(s1, 4, s2, 4)
	for range 20 { // in whatever order the answers come
		got, transport := discover(t, fakePort{a, 1}, Config{})
		require.Empty(t, got.Problems)
		require.Equal(t, map[GUID]string{0xa: "0", 0x1: "0,1", 0x2: "0,1,3", 0xb: "0,1,3,2"}, routes(got))
		require.Equal(t, []string{"a.1-1.1", "a.2-2.1", "1.3-2.3", "1.4-2.4", "2.2-b.1"}, links(got))
		require.LessOrEqual(t, transport.most, DefaultInFlight)
		first := got.Nodes[0]
		require.Equal(t, "0x000000000000000a", first.Description)
		require.Equal(t, 1, first.LocalPort)
		require.Len(t, first.Ports, 2)
		second := got.Node(0x2)
		require.Equal(t, 3, second.LocalPort, "the end of its route")
		require.NotNil(t, second.Switch)
		require.Nil(t, first.Switch)
		require.Len(t, second.Ports, 5)
		require.Nil(t, second.Port(5))
		require.True(t, second.Port(4).Known)
		require.EqualValues(t, 40, second.Port(4).Rate())
		require.Zero(t, newPortOf(second).Rate())
		require.Nil(t, got.Node(0x3))
	}
}

// newPortOf returns a port of which nothing is known.
func newPortOf(n *Node) *Port { return &Port{Node: n} }

func TestDiscoverFromSwitch(t *testing.T) {
	s, a := newSwitch(0x1, 3), newAdapter(0xa, 1)
	connect(s, 2, a, 1)
	got, _ := discover(t, fakePort{s, 0}, Config{})
	require.Empty(t, got.Problems)
	require.Equal(t, map[GUID]string{0x1: "0", 0xa: "0,2"}, routes(got))
	require.Equal(t, []string{"1.2-a.1"}, links(got))
}

// A plug that leads a port back to itself, and a cable between two ports of a
// switch.
func TestDiscoverLoops(t *testing.T) {
	s, a := newSwitch(0x1, 4), newAdapter(0xa, 1)
	connect(a, 1, s, 1)
	connect(s, 2, s, 2)
	connect(s, 3, s, 4)
	got, _ := discover(t, fakePort{a, 1}, Config{})
	require.Empty(t, got.Problems)
	require.Equal(t, []string{"a.1-1.1", "1.2-1.2", "1.3-1.4"}, links(got))
}

// A dead node, and what lies behind it, is not found; all else is.
func TestDiscoverPastDeadNode(t *testing.T) {
	a, s1, dead, behind, b := newAdapter(0xa, 1), newSwitch(0x1, 4), newSwitch(0x2, 4), newAdapter(0xc, 1), newAdapter(0xb, 1)
	connect(a, 1, s1, 1)
	connect(s1, 2, dead, 1)
	connect(dead, 2, behind, 1)
	connect(s1, 3, b, 1)
	dead.dead = true
	got, _ := discover(t, fakePort{a, 1}, Config{})
	require.Equal(t, map[GUID]string{0xa: "0", 0x1: "0,1", 0xb: "0,1,3"}, routes(got))
	require.Len(t, got.Problems, 1)
	require.EqualError(t, got.Problems[0],
		`behind port 2 of Switch 0x0000000000000001 "0x0000000000000001": NodeInfo (0,1,2): no answer (requests sent: 3, timeout 1s)`)
	require.ErrorIs(t, got.Problems[0], ErrNoAnswer)
	require.Equal(t, GUID(1), got.Problems[0].Node.GUID)
	require.Nil(t, got.Node(1).Port(2).Peer)
}

func TestDiscoverLocalNodeIsDead(t *testing.T) {
	a := newAdapter(0xa, 1)
	a.dead = true
	c, _ := newFake(t, Config{}, (&fakeFabric{from: fakePort{a, 1}}).answer)
	got, err := c.Discover(t.Context())
	require.Nil(t, got)
	require.EqualError(t, err, "NodeInfo (0): no answer (requests sent: 3, timeout 1s)")
}

// chain returns a chain of switches, and the local port at its start.
func chain(n int) (fakePort, []*fakeNode) {
	a := newAdapter(0xa0000, 1)
	all := []*fakeNode{newSwitch(1, 3)}
	connect(a, 1, all[0], 1)
	for len(all) < n {
		next := newSwitch(GUID(len(all)+1), 3)
		connect(all[len(all)-1], 2, next, 1)
		all = append(all, next)
	}
	return fakePort{a, 1}, all
}

// A route has 63 hops at most. What lies behind is a problem, not a fault.
func TestDiscoverLongChain(t *testing.T) {
	from, _ := chain(MaxHops)
	got, _ := discover(t, from, Config{})
	require.Empty(t, got.Problems)
	require.Len(t, got.Nodes, MaxHops+1)

	from, _ = chain(MaxHops + 3)
	got, _ = discover(t, from, Config{})
	require.Len(t, got.Nodes, MaxHops+1)
	require.Len(t, got.Problems, 1)
	require.Equal(t, GUID(MaxHops), got.Problems[0].Node.GUID)
	require.Equal(t, 2, got.Problems[0].Port)
	require.ErrorContains(t, got.Problems[0], "more than 63 hops")
}

// A ring is found from both sides, however long one of them takes.
func TestDiscoverRing(t *testing.T) {
	from, all := chain(2*MaxHops - 2)
	connect(all[len(all)-1], 2, all[0], 3)
	for range 5 {
		for _, inFlight := range []int{1, 2, 64} {
			got, _ := discover(t, from, Config{InFlight: inFlight})
			require.Empty(t, got.Problems)
			require.Len(t, got.Nodes, len(all)+1)
			last := got.Nodes[len(got.Nodes)-1]
			require.Equal(t, MaxHops, last.Route.Hops())
		}
	}
}

// Where the first answers lead along a detour of 63 hops, the way goes on from
// the node's shorter route.
func TestDiscoverAfterDetour(t *testing.T) {
	from, all := chain(MaxHops)
	last := all[len(all)-1]
	more := newSwitch(0xb00, 3)
	connect(last, 2, more, 1)
	connect(all[0], 3, last, 3) // a short cut
	f := &fakeFabric{from: from}
	late := make(chan struct{})
	c, _ := newFake(t, Config{InFlight: 2, Timeout: time.Hour}, func(p *packet) []*packet {
		// The short cut answers when the detour has come to its end.
		if p.mad[offHopCount] == 2 && p.mad[offPath+2] == 3 {
			<-late
		}
		if p.mad[offHopCount] == MaxHops && p.mad[offAttribute+1] == 0x15 && p.mad[offModifier+3] == 2 {
			defer close(late)
		}
		return f.answer(p)
	})
	got, err := c.Discover(t.Context())
	require.NoError(t, err)
	require.Empty(t, got.Problems)
	require.Equal(t, "0,1,3,2", routes(got)[0xb00])
	require.Len(t, got.Nodes, MaxHops+2)
}

// Two nodes with one GUID are told.
func TestDiscoverSameGUID(t *testing.T) {
	a, s, b, c := newAdapter(0xa, 1), newSwitch(1, 4), newAdapter(0xb, 1), newAdapter(0xb, 1)
	connect(a, 1, s, 1)
	connect(b, 1, s, 2)
	connect(c, 1, s, 3)
	got, _ := discover(t, fakePort{a, 1}, Config{})
	require.Len(t, got.Nodes, 3)
	require.Len(t, got.Problems, 1)
	require.ErrorContains(t, got.Problems[0], "a cable was moved, or two nodes have the same GUID")
}

// Two nodes with one GUID are found out by what they are, or by a port that has
// no link. Only one of them is a Node, with its own ports.
func TestDiscoverNodesWithOneGUID(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other *fakeNode
		port  int // of other
		want  string
	}{
		{"another type", newAdapter(2, 1), 1, "Channel Adapter |Switch "},
		{"another size", newSwitch(2, 36), 9, "(ports: 36)|(ports: 4)"},
		{"the same kind", newSwitch(2, 4), 3, "has answered that its link is down: a cable was moved, or two nodes have the same GUID"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, s, twin, behind := newAdapter(0xa, 1), newSwitch(1, 4), newSwitch(2, 4), newAdapter(0xb, 1)
			connect(a, 1, s, 1)
			connect(s, 2, twin, 1)
			connect(s, 3, tt.other, tt.port)
			connect(twin, 2, behind, 1)
			for range 20 { // in whatever order the answers come
				got, _ := discover(t, fakePort{a, 1}, Config{})
				require.Len(t, got.Problems, 1)
				first, second, _ := strings.Cut(tt.want, "|")
				require.ErrorContains(t, got.Problems[0], first)
				require.ErrorContains(t, got.Problems[0], second)
				n := got.Node(2)
				require.LessOrEqual(t, len(n.Ports), n.NumPorts+1)
			}
		})
	}
}

// A node that answers for any number of nodes behind it fills no memory.
func TestDiscoverEndlessFabric(t *testing.T) {
	c, f := newFake(t, Config{}, func(p *packet) []*packet {
		var a attribute
		switch binary.BigEndian.Uint16(p.mad[offAttribute:]) {
		case attrNodeInfo.number:
			a.setField(16, 8, uint64(Switch))
			a.setField(24, 8, maxPort)
			a.setField(96, 64, maphash.Bytes(seed, p.mad[offPath:offPath+1+int(p.mad[offHopCount])]))
			a.setField(288, 8, 1)
		case attrPortInfo.number:
			a.setField(264, 4, 5)
		}
		return []*packet{response(p, 0, a[:smpSize])}
	})
	const limit = 20000
	got, err := c.discover(t.Context(), limit)
	require.ErrorContains(t, err, "a node answers for nodes that do not exist")
	ports := 0
	for _, n := range got.Nodes {
		ports += len(n.Ports)
	}
	require.GreaterOrEqual(t, ports, limit)
	require.Less(t, ports, limit+(maxPort+1)*DefaultInFlight, "one node more for each request in flight")
	require.Less(t, f.sent, 3*limit)
}

var seed = maphash.MakeSeed()

// A hostile node that says of itself what it likes does no harm.
func TestDiscoverHostile(t *testing.T) {
	a, s := newAdapter(0xa, 1), newSwitch(1, 4)
	connect(a, 1, s, 1)
	f := &fakeFabric{from: fakePort{a, 1}}
	for name, change := range map[string]func(data *attribute){
		"255 ports":      func(d *attribute) { d.setField(24, 8, 255) },
		"no ports":       func(d *attribute) { d.setField(24, 8, 0) },
		"no type":        func(d *attribute) { d.setField(16, 8, 77) },
		"port 200":       func(d *attribute) { d.setField(288, 8, 200) },
		"the local GUID": func(d *attribute) { d.setField(96, 64, 0xa) },
		"all ones": func(d *attribute) {
			for i := range smpSize {
				d[i] = 0xff
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := newFake(t, Config{}, func(p *packet) []*packet {
				answers := f.answer(p)
				if m := &answers[0].mad; p.mad[offHopCount] > 0 && answers[0].failed == nil {
					data := m.attribute(false)
					change(data)
					copy(m[offData:], data[:smpSize])
				}
				return answers
			})
			got, err := c.Discover(t.Context())
			require.NoError(t, err)
			require.NotEmpty(t, got.Nodes)
			for range got.Links() { // ends
			}
			for _, p := range got.Problems {
				require.NotEmpty(t, p.Error())
			}
		})
	}
}

// The context's end leaves what was found.
func TestDiscoverIsCancelled(t *testing.T) {
	from, _ := chain(20)
	f := &fakeFabric{from: from}
	cause := errors_("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	c, _ := newFake(t, Config{}, func(p *packet) []*packet {
		if p.mad[offHopCount] == 10 {
			cancel(cause)
			return nil
		}
		return f.answer(p)
	})
	got, err := c.Discover(ctx)
	require.ErrorIs(t, err, cause)
	require.NotNil(t, got)
	require.Empty(t, got.Problems)
	require.GreaterOrEqual(t, len(got.Nodes), 5)
	require.Less(t, len(got.Nodes), 20)
}

type errors_ string

func (e errors_) Error() string { return string(e) }

// So does the failure of the local port, which does not count as one of each
// node.
func TestDiscoverPortFails(t *testing.T) {
	from, _ := chain(20)
	f := &fakeFabric{from: from}
	var transport *fakeTransport
	c, transport := newFake(t, Config{}, func(p *packet) []*packet {
		if p.mad[offHopCount] == 10 {
			transport.mu.Lock()
			transport.sendError = syscall.EIO
			transport.mu.Unlock()
		}
		return f.answer(p)
	})
	got, err := c.Discover(t.Context())
	require.ErrorIs(t, err, syscall.EIO)
	require.NotNil(t, got)
	require.GreaterOrEqual(t, len(got.Nodes), 9)
}

// Cables that come and go while the fabric is discovered end nothing.
func TestDiscoverWhileCablesMove(t *testing.T) {
	from, all := chain(30)
	f := &fakeFabric{from: from}
	requests := 0
	c, _ := newFake(t, Config{}, func(p *packet) []*packet {
		f.mu.Lock()
		requests++
		s := all[requests%len(all)]
		if peer, ok := s.links[2]; ok && requests%3 == 0 {
			delete(s.links, 2)
			delete(peer.node.links, peer.port)
		} else if n := requests % len(all); n+1 < len(all) {
			connect(s, 2, all[n+1], 1)
		}
		f.mu.Unlock()
		return f.answer(p)
	})
	for range 20 {
		got, err := c.Discover(t.Context())
		if err != nil {
			require.ErrorIs(t, err, ErrNoAnswer)
			continue
		}
		require.NotEmpty(t, got.Nodes)
	}
}
