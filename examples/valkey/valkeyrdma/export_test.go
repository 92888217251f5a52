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
	underWay, _ := handshakes.Load(address)
	return len(underWay.(chan struct{}))
}

// Arrived returns how many bytes have arrived, whether or not they were read.
func Arrived(c *Conn) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.arrived
}
