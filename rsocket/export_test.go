// SPDX-License-Identifier: Apache-2.0

package rsocket

// Idle reports whether nothing of a connection is under way.
func Idle(c *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.Idle()
}

// SlabsInUse returns how much memory to send from connections of a pool have.
func SlabsInUse(p *Pool) (used, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.parts {
		s.memory.mu.Lock()
		used, all = used+len(s.memory.all), all+len(s.memory.all)
		for _, free := range s.memory.free {
			used -= len(free)
		}
		s.memory.mu.Unlock()
	}
	return used, all
}

// FailBelow makes the queue pair of a connection flush all requests, of which
// rdmacm does not know.
func FailBelow(c *Conn) error { return c.qp.SetError() }

// Parts returns how many queues the connections of a pool are on.
func Parts(p *Pool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.parts)
}

// KeepsAlive reports whether a connection checks its peer.
func KeepsAlive(c *Conn) bool {
	c.keepAlive.mu.Lock()
	defer c.keepAlive.mu.Unlock()
	return c.keepAlive.timer != nil
}
