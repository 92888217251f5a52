// SPDX-License-Identifier: Apache-2.0

package cm

import "fmt"

// Left says what a manager still has.
func (m *Manager) Left() string {
	return fmt.Sprintf("%d IDs, %d ports, %d claims, %d connections, %d numbers, %d queue pairs, %d services, %d timers",
		len(m.ids), len(m.bound), len(m.claims), len(m.conns), len(m.remoteIDs), len(m.remoteQPNs), len(m.sidr), len(m.timers))
}

// AckTimeout is ackTimeout.
var AckTimeout = ackTimeout
