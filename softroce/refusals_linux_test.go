// SPDX-License-Identifier: Apache-2.0

package softroce_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// The host of a process that has ended refuses what comes for it (ICMP and
// ICMPv6). What was sent fails then, and is not sent until no retries are left.
func TestHostRefuses(t *testing.T) {
	eachFamily(t, func(t *testing.T, h *hosts) {
		h.works()
		s := h.seen()
		h.server.Kill()
		_, err := fmt.Fprintln(h.client.Stdin, "late")
		require.NoError(t, err, h.client.Output())
		require.Equal(t, 2, h.client.Wait(), h.client.Output())
		require.Contains(t, h.client.Output(), "transport retry counter exceeded")
		times := map[wire.PSN]int{}
		for _, p := range h.captured() {
			if p.DestQP == s.serverQPN && p.Opcode.IsSend() {
				times[p.PSN]++
			}
		}
		require.Len(t, times, 2, "a line before, and one after")
		const retries = 6 // of Dial's; a busy machine hears of the refusal late, but before the last one
		for psn, n := range times {
			require.LessOrEqual(t, n, retries, "packet %d", psn)
		}
	})
}
