// SPDX-License-Identifier: Apache-2.0

package endpoint

// Requests returns how many requests no call has taken yet.
func Requests(ep *Endpoint) int {
	ep.inbox.mu.Lock()
	defer ep.inbox.mu.Unlock()
	return len(ep.inbox.requests)
}

// Calls returns how many calls wait for their events.
func Calls(ep *Endpoint) int {
	ep.inbox.mu.Lock()
	defer ep.inbox.mu.Unlock()
	return len(ep.inbox.calls)
}
