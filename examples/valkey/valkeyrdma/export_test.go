// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

// Gone returns a channel that is closed when the connection has ended and
// released its resources.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Asking reports whether the connection waits for the server's answer.
func Asking(c *Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asking
}

// MaxHandshakes is how many handshakes with one address may be under way.
const MaxHandshakes = maxHandshakes

// Handshakes returns how many are.
func Handshakes(address string) int {
	limiters.Lock()
	defer limiters.Unlock()
	if l := limiters.of[address]; l != nil {
		return len(l.underWay)
	}
	return 0
}

// Addresses returns for how many addresses handshakes are counted.
func Addresses() int {
	limiters.Lock()
	defer limiters.Unlock()
	return len(limiters.of)
}

// Arrived returns how many bytes have arrived, whether or not they were read.
func Arrived(c *Conn) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.arrived
}

// Offered returns the number of bytes for which windows were offered.
func Offered(c *Conn) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offered
}

// HoldPosts makes the connection post nothing until release is called.
func HoldPosts(c *Conn) (release func()) {
	c.posting.Lock()
	return c.posting.Unlock
}
