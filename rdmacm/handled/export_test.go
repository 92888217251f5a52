// SPDX-License-Identifier: Apache-2.0

package handled

// Unhandled returns how many events wait for their handler.
func Unhandled(h *ID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.events)
}

// Stopping returns how many calls of Shutdown wait.
func Stopping(h *ID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stopping
}

// Requests returns how many requests count against the backlog.
func Requests(h *ID) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.requests
}
