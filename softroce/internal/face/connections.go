// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"math/rand/v2"
	"time"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/generated/librdmacm"
	manager "github.com/verbena-go/verbena/softroce/internal/cm"
)

// connections is what the node has of librdmacm.
type connections struct {
	manager   *manager.Manager
	mads      []manager.MAD // to this node
	receiving bool          // the manager receives one of them
	channels  map[*librdmacm.EventChannel]*eventChannel
	ids       map[*librdmacm.CmId]*id
	events    map[*librdmacm.CmEvent]*cmEvent
	device    *openDevice // that ids use, nil until one does
	opened    map[*libibverbs.Context]*openDevice
	claims    map[string]*claimed // by name
	asking    []*id               // for hosts that are not there
}

func (n *node) newConnections() connections {
	scale := manager.DefaultScale
	if n.internet != nil {
		scale = 1 // others have Linux's times
	}
	return connections{
		manager: manager.New(manager.Config{
			Scale:  scale,
			Host:   (*host)(n),
			Random: rand.Uint32,
			GUID:   rand.Uint64(),
		}),
		opened:   map[*libibverbs.Context]*openDevice{},
		channels: map[*librdmacm.EventChannel]*eventChannel{},
		ids:      map[*librdmacm.CmId]*id{},
		claims:   map[string]*claimed{},
		events:   map[*librdmacm.CmEvent]*cmEvent{},
	}
}

// advance does what is due and returns the time of what comes next.
func (c *connections) advance(now time.Duration) (next time.Duration) {
	c.receive(now)
	next = c.giveUp(now)
	if due, ok := c.manager.Advance(now); ok {
		next = min(next, due)
	}
	if len(c.mads) > 0 { // sent again just now, to this node
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
