// SPDX-License-Identifier: Apache-2.0

package rsocket

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// An Accept that meets Close returns an error, and not a connection that is
// nil.
func TestAcceptMeetsClose(t *testing.T) {
	const accepts = 8
	for range 2_000 {
		ln := &Listener{closed: make(chan struct{})}
		ln.ctx, ln.cancel = context.WithCancel(t.Context())
		ln.queue.init(ln.ctx, 1, nil)
		ln.deadline.init(func() {})
		var all sync.WaitGroup
		for range accepts {
			all.Go(func() {
				conn, err := ln.Accept()
				if conn != nil {
					t.Error("accepted a connection that there is not")
				} else if err == nil {
					t.Error("accepted nothing")
				}
			})
		}
		_ = ln.Close() // there is no listener below
		all.Wait()
		_, err := ln.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
		if t.Failed() {
			return
		}
	}
}
