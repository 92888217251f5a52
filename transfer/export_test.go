// SPDX-License-Identifier: Apache-2.0

package transfer

import "github.com/verbena-go/verbena/rdmacm"

// data returns the data connections that are up.
func (p *Peer) data() (all []*rdmacm.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		for _, path := range p.session.up {
			all = append(all, path.conn)
		}
	}
	return all
}

// BreakData ends a data connection.
func BreakData(p *Peer) {
	if data := p.data(); len(data) > 0 {
		_ = data[0].Close()
	}
}

// BreakAllData ends all data connections.
func BreakAllData(p *Peer) {
	for _, c := range p.data() {
		_ = c.Close()
	}
}

// BreakControl ends the control connection.
func BreakControl(p *Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.session; s != nil && s.control != nil {
		s.detach()
	}
}

// WaitingNotifications returns how many notifications wait for room in the
// peer's mailbox.
func WaitingNotifications(p *Peer) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session == nil {
		return 0
	}
	return len(p.session.waiting)
}

// SetNearer makes a device the nearest one to all of an engine's memory. The
// engine has no peer and no memory yet.
func SetNearer(e *Engine, device int) { e.setNearer(device) }

// Paths returns the number of data connections that are up.
func Paths(p *Peer) int { return len(p.data()) }

// Reserving returns the number of calls of Submit that wait for room.
func Reserving(p *Peer) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.reserving)
}

// Registered returns the number of regions that are registered.
func Registered(e *Engine) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.all)
}
