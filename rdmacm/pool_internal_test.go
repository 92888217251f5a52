// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func joining() *pooled { return &pooled{ops: new(operations)} }

// Connections join and leave a pool while others look for lost receives. None
// of them waits for another for ever.
func TestPoolJoinsWhileOthersLeave(t *testing.T) {
	const rounds = 20_000
	p := &part{conns: map[*pooled]struct{}{}, entries: 10}
	s := &p.receives
	s.loses, s.slots = true, []sharedSlot{{number: 1, suspect: 1}}
	s.suspects, s.last, s.passed = 1, 1, 2
	require.NoError(t, p.join(joining(), 1)) // it can have the receive
	var all sync.WaitGroup
	all.Go(func() {
		for range rounds {
			if o := joining(); p.join(o, 1) == nil {
				p.leave(o, 0)
			}
		}
	})
	all.Go(func() {
		for range rounds {
			s.settle(p.live)
		}
	})
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		require.FailNow(t, "they wait for each other")
	}
	require.Equal(t, 9, p.entries)
	require.Equal(t, 1, s.suspects)
}
