// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "github.com/verbena-go/verbena/ibverbs"

// collector takes completions from a completion queue. Of the goroutines that
// wait for a request, one is the poller: it polls the queue and hands out the
// completions of all requests. A connection with its own queue has its own
// collector; the connections of a Pool share one.
type collector struct {
	cq *ibverbs.CQ // nil if the program polls
	// polling is full while a goroutine is the poller. It is nil if the
	// program polls, so that no goroutine becomes the poller.
	polling chan struct{}
	wcs     []ibverbs.WC           // used by the poller
	turns   uint                   // number of times that a goroutine has become the poller; used by the poller
	deliver func(wcs []ibverbs.WC) // called by the poller
}

func newCollector(cq *ibverbs.CQ, deliver func([]ibverbs.WC)) *collector {
	return &collector{cq: cq, polling: make(chan struct{}, 1), wcs: make([]ibverbs.WC, 16), deliver: deliver}
}
