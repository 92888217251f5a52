// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"math/bits"
	"sync"
)

// oftenTold is how many of the events of a kind are told one by one.
const oftenTold = 10

// Recurring tells of events that others cause, such as refused connections:
// each of the first ten, and then those whose number is a power of two, so that
// none of them fills a log with them. Its methods may be called concurrently.
type Recurring struct {
	mu sync.Mutex
	n  int // events since Reset
}

// Tell calls f with the text of an event, unless there were too many. If events
// before it were left out, it says which number this one has.
func (r *Recurring) Tell(f func(text string), text string) {
	r.mu.Lock()
	r.n++
	n := r.n
	r.mu.Unlock()
	switch {
	case n <= oftenTold:
		f(text)
	case bits.OnesCount(uint(n)) == 1:
		f(fmt.Sprintf("%s (number %d of this kind in a row)", text, n))
	}
}

// Reset makes Tell begin anew, after an event of another kind.
func (r *Recurring) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n = 0
}
