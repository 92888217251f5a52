// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"math/rand/v2"
	"time"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// connections is the node's connection manager, with what the node keeps for
// it: messages to this node, claimed ports, and address resolutions that wait
// for a host.
type connections struct {
	n         *Node
	manager   *manager.Manager
	mads      []manager.MAD       // messages to this node that the manager has not received yet
	receiving bool                // whether the manager is receiving one of mads
	claims    map[string]*claimed // keyed by the claimed name
	inquiries []*inquiry
}

func newConnections(n *Node) connections { return connections{n: n, claims: map[string]*claimed{}} }

// start creates the manager. The node must have joined its network.
func (c *connections) start() {
	scale := manager.DefaultScale
	if c.n.network.isPublic() {
		scale = 1 // software of other vendors has Linux's timeouts
	}
	c.manager = manager.New(manager.Config{
		Scale:  scale,
		Host:   (*host)(c.n),
		Random: rand.Uint32,
		GUID:   rand.Uint64(),
	})
}

// Manager returns the connection manager. The node must be locked during calls
// of its methods and those of its objects.
func (n *Node) Manager() *manager.Manager { return n.cm.manager }

// keep stores a message until the manager receives it. from is the number of
// the node that has sent it. If the port is down, the message is dropped.
func (c *connections) keep(from int, m manager.MAD) {
	if !c.n.devices.connected(m.Dst) {
		return
	}
	m.Node, m.Routed = from, nil
	c.mads = append(c.mads, m)
}

// routed tells the manager, which is sending m, that m goes to the node whose
// number is slot.
func routed(m manager.MAD, slot int) {
	if m.Routed != nil {
		m.Routed(slot)
	}
}

// advance does the work that is due at the time now. next is the time at which
// advance must be called again.
func (c *connections) advance(now time.Duration) (next time.Duration) {
	c.receive(now)
	next = c.inquire(now)
	if due, ok := c.manager.Advance(now); ok {
		next = min(next, due)
	}
	if len(c.mads) > 0 { // the manager has repeated a message to this node
		next = now
	}
	return next
}

// receive passes the stored messages to the manager.
func (c *connections) receive(now time.Duration) {
	c.receiving = true
	for i := 0; i < len(c.mads); i++ { // the manager's answers to this node are appended
		c.manager.Receive(now, c.mads[i])
	}
	c.receiving = false
	clear(c.mads)
	c.mads = c.mads[:0]
}
