// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rdmacm takes no request back because the server is busy.
func TestDialHasNoHandshakeTimeout(t *testing.T) {
	require.Negative(t, new(Dialer).rdma(nil).Config.HandshakeTimeout)
}

// A deadline is kept, however late; without one, there is a limit.
func TestPatience(t *testing.T) {
	for name, deadline := range map[string]time.Time{
		"late": time.Now().Add(100 * patience), "early": time.Now().Add(patience / 100), "none": {},
	} {
		t.Run(name, func(t *testing.T) {
			given := t.Context()
			if !deadline.IsZero() {
				var cancel context.CancelFunc
				given, cancel = context.WithDeadline(given, deadline)
				defer cancel()
			}
			before := time.Now()
			ctx, cancel := withPatience(given)
			defer cancel()
			got, ok := ctx.Deadline()
			require.True(t, ok)
			if deadline.IsZero() {
				require.WithinRange(t, got, before.Add(patience), time.Now().Add(patience))
			} else {
				require.Equal(t, deadline, got)
			}
		})
	}
}
