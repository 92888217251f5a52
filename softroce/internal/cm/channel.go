// SPDX-License-Identifier: Apache-2.0

package cm

import (
	"slices"
	"sort"
	"time"

	"github.com/verbena-go/verbena/generated/librdmacm"
)

// Channel is a queue of events for the program.
type Channel struct {
	m      *Manager
	notify func(events int)
	events []*Event
}

// NewChannel returns a channel. It calls notify with 1 for each event that is
// queued. If n queued events are dropped or move to another channel, so that
// Next will not return them, it calls notify with -n.
func (m *Manager) NewChannel(notify func(events int)) *Channel {
	return &Channel{m: m, notify: notify}
}

// Len returns the number of queued events.
func (c *Channel) Len() int { return len(c.events) }

// Next removes the first event and returns it. It returns nil if there is none.
func (c *Channel) Next() *Event {
	if len(c.events) == 0 {
		return nil
	}
	e := c.events[0]
	c.events = c.events[1:]
	e.owner.reported++
	if e.group != nil {
		e.group.reported++
	}
	if e.Type == librdmacm.RDMA_CM_EVENT_CONNECT_REQUEST {
		e.owner.backlog++
	}
	return e
}

// Destroy destroys the IDs whose events go to the channel, and drops the
// events.
func (c *Channel) Destroy(now time.Duration) {
	for _, id := range c.m.idsThat(func(id *ID) bool { return id.channel == c }) {
		id.Destroy(now)
	}
}

// add queues an event.
func (c *Channel) add(e *Event) {
	c.events = append(c.events, e)
	c.notify(1)
}

// take removes the events for which match returns true, and returns them.
func (c *Channel) take(match func(*Event) bool) []*Event {
	var taken []*Event
	c.events = slices.DeleteFunc(c.events, func(e *Event) bool {
		if !match(e) {
			return false
		}
		taken = append(taken, e)
		return true
	})
	if len(taken) > 0 {
		c.notify(-len(taken))
	}
	return taken
}

// idsThat returns the IDs for which match returns true, the oldest first.
func (m *Manager) idsThat(match func(*ID) bool) []*ID {
	var found []*ID
	for id := range m.ids {
		if match(id) {
			found = append(found, id)
		}
	}
	sort.Slice(found, func(i, j int) bool { return found[i].serial < found[j].serial })
	return found
}
