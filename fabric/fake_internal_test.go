// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeTransport answers requests as a function says.
type fakeTransport struct {
	answer func(request *packet) []*packet

	mu        sync.Mutex
	sent      int // requests
	inFlight  int // requests without an answer
	most      int // that were in flight at a time
	sendError error
	closed    bool
	received  chan *packet
}

func (f *fakeTransport) send(p *packet) error {
	f.mu.Lock()
	if f.sendError != nil {
		defer f.mu.Unlock()
		return f.sendError
	}
	f.sent++
	f.inFlight++
	f.most = max(f.most, f.inFlight)
	f.mu.Unlock()
	copied := *p
	go func() {
		for _, answer := range f.answer(&copied) {
			f.received <- answer
		}
	}()
	return nil
}

func (f *fakeTransport) receive(p *packet) (bool, error) {
	select {
	case answer := <-f.received:
		f.mu.Lock()
		f.inFlight--
		f.mu.Unlock()
		*p = *answer
		return true, nil
	case <-time.After(10 * time.Millisecond): // as libibumad's timeout
		return false, nil
	}
}

func (f *fakeTransport) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

// newFake returns a client whose requests are answered by a function.
func newFake(t testing.TB, config Config, answer func(*packet) []*packet) (*Client, *fakeTransport) {
	t.Helper()
	f := &fakeTransport{answer: answer, received: make(chan *packet, 1024)}
	require.NoError(t, config.check())
	c := newClient(config, f)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c, f
}

// response returns the answer to a request, with a status and data.
func response(request *packet, status Status, data []byte) *packet {
	answer := *request
	m := &answer.mad
	m[offMethod] = methodResponse
	binary.BigEndian.PutUint16(m[offStatus:], uint16(status))
	if m[offClass] == classDirected {
		m[offStatus] |= directionBit >> 8
	}
	copy(m[offData:], data)
	return &answer
}

// unanswered returns what the kernel reports of a request that nothing
// answered.
func unanswered(request *packet) *packet {
	answer := *request
	answer.failed = ErrNoAnswer
	return &answer
}

// fakeNode is a node of a fake fabric.
type fakeNode struct {
	guid  GUID
	kind  NodeType
	ports int
	links map[int]fakePort // by port
	dead  bool
}

// fakePort is a port of a node.
type fakePort struct {
	node *fakeNode
	port int
}

// connect links two ports.
func connect(a *fakeNode, aPort int, b *fakeNode, bPort int) {
	a.links[aPort], b.links[bPort] = fakePort{b, bPort}, fakePort{a, aPort}
}

func newSwitch(guid GUID, ports int) *fakeNode {
	return &fakeNode{guid: guid, kind: Switch, ports: ports, links: map[int]fakePort{}}
}

func newAdapter(guid GUID, ports int) *fakeNode {
	return &fakeNode{guid: guid, kind: ChannelAdapter, ports: ports, links: map[int]fakePort{}}
}

// fakeFabric answers as the nodes of a fabric do, seen from a port.
type fakeFabric struct {
	mu   sync.Mutex // guards the links
	from fakePort
}

// end returns where a route leads: the node, and the port at which it enters.
func (f *fakeFabric) end(m *mad) (fakePort, bool) {
	at := f.from
	for hop := 1; hop <= int(m[offHopCount]); hop++ {
		out := int(m[offPath+hop])
		if at.node.dead || at.node.kind != Switch && (hop > 1 || out != f.from.port) {
			return at, false
		}
		next, ok := at.node.links[out]
		if !ok {
			return at, false
		}
		at = next
	}
	return at, !at.node.dead
}

func (f *fakeFabric) answer(p *packet) []*packet {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, ok := f.end(&p.mad)
	if !ok {
		return []*packet{unanswered(p)}
	}
	n := at.node
	var a attribute
	switch binary.BigEndian.Uint16(p.mad[offAttribute:]) {
	case attrNodeInfo.number:
		a.setField(16, 8, uint64(n.kind))
		a.setField(24, 8, uint64(n.ports))
		a.setField(96, 64, uint64(n.guid))
		a.setField(160, 64, uint64(n.guid))
		a.setField(288, 8, uint64(at.port))
	case attrPortInfo.number:
		port := int(binary.BigEndian.Uint32(p.mad[offModifier:]))
		if port == 0 && n.kind != Switch {
			port = at.port
		}
		if port > n.ports {
			return []*packet{response(p, StatusInvalidValue, nil)}
		}
		a.setField(224, 8, uint64(at.port))
		a.setField(260, 4, 1)
		a.setField(264, 4, 2)
		if _, linked := n.links[port]; linked || port == 0 {
			a.setField(248, 8, 2)
			a.setField(280, 4, 4)
			a.setField(260, 4, 4)
			a.setField(264, 4, 5)
		}
	case attrSwitchInfo.number:
		if n.kind != Switch {
			return []*packet{response(p, StatusUnsupported, nil)}
		}
	case attrNodeDescription.number:
		copy(a[:], n.guid.String())
	}
	return []*packet{response(p, 0, a[:smpSize])}
}
