// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "github.com/verbena-go/verbena/ibverbs"

// collector takes completions from a completion queue. One of the goroutines
// that wait for a request leads: it polls the queue and hands out everyone's
// completions. Connections with a queue of their own have a collector each; those
// of a Pool share one.
type collector struct {
	cq      *ibverbs.CQ            // nil if the program polls
	lead    chan struct{}          // full while a goroutine leads; nil if the program polls, so that nobody leads
	wcs     []ibverbs.WC           // used by the leader
	turns   uint                   // number of turns as leader; used by the leader
	deliver func(wcs []ibverbs.WC) // called by the leader
}

func newCollector(cq *ibverbs.CQ, deliver func([]ibverbs.WC)) *collector {
	return &collector{cq: cq, lead: make(chan struct{}, 1), wcs: make([]ibverbs.WC, 16), deliver: deliver}
}
