// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

// There is one poller at a time, and always one again, while a goroutine parks
// as the poller and others poll beside it.
func TestPollersBesideTheParkedOne(t *testing.T) {
	c := newCollector(&ibverbs.CQ{}, func([]ibverbs.WC) {})
	const besides, turns = 2, 5000
	var pollers atomic.Int32
	poll := func() {
		if n := pollers.Add(1); n != 1 {
			t.Errorf("%d pollers at a time", n)
		}
		pollers.Add(-1)
	}
	var all sync.WaitGroup
	var over atomic.Bool
	for range besides {
		all.Go(func() {
			for i := 0; !over.Load(); i++ {
				if c.becomePoller() {
					poll()
					c.endTurn()
				}
				if i%16 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	for i := range turns {
		for !c.becomeWaiter() {
			runtime.Gosched()
		}
		poll()
		c.beforePark()
		for range i % 8 {
			runtime.Gosched()
		}
		c.afterPark()
		poll()
		c.endTurn()
	}
	over.Store(true)
	all.Wait()
	require.True(t, c.becomePoller(), "no goroutine is the poller")
	require.Empty(t, c.back)
}
