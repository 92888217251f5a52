// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"math/rand/v2"
	"time"

	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// connections is the connection manager of the node, and what it needs of the
// node: its messages, the ports that it has claimed, and the hosts that it asks
// for.
type connections struct {
	n         *Node
	manager   *manager.Manager
	mads      []manager.MAD       // to this node
	receiving bool                // the manager receives one of mads
	claims    map[string]*claimed // by name
	inquiries []*inquiry
}

func newConnections(n *Node) connections { return connections{n: n, claims: map[string]*claimed{}} }

// start makes the manager, when the node has its network.
func (c *connections) start() {
	scale := manager.DefaultScale
	if c.n.network.isPublic() {
		scale = 1 // other software has Linux's times
	}
	c.manager = manager.New(manager.Config{
		Scale:  scale,
		Host:   (*host)(c.n),
		Random: rand.Uint32,
		GUID:   rand.Uint64(),
	})
}

// Manager returns the connection manager. Its methods, and those of its
// objects, need the node locked.
func (n *Node) Manager() *manager.Manager { return n.cm.manager }

// keep keeps a message from a node until the manager receives it.
func (c *connections) keep(from int, m manager.MAD) {
	if !c.n.devices.connected() {
		return
	}
	m.Node, m.Went = from, nil
	c.mads = append(c.mads, m)
}

// went tells the manager to which node a message goes.
func went(m manager.MAD, slot int) {
	if m.Went != nil {
		m.Went(slot)
	}
}

// advance does what is due and returns the time of what comes next.
func (c *connections) advance(now time.Duration) (next time.Duration) {
	c.receive(now)
	next = c.inquire(now)
	if due, ok := c.manager.Advance(now); ok {
		next = min(next, due)
	}
	if len(c.mads) > 0 { // the manager has repeated one to this node
		next = now
	}
	return next
}

// receive passes on the messages to this node.
func (c *connections) receive(now time.Duration) {
	c.receiving = true
	for i := 0; i < len(c.mads); i++ { // answers are appended
		c.manager.Receive(now, c.mads[i])
	}
	c.receiving = false
	clear(c.mads)
	c.mads = c.mads[:0]
}
