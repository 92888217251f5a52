// SPDX-License-Identifier: Apache-2.0

package engine

// allowance limits the packets that a queue pair may have in flight after a
// loss to fewer than the window. So several queue pairs find out together how
// many packets the way to a peer and its buffer can hold. Otherwise each would
// send its whole window again, and lose it again.
type allowance struct {
	packets int // the limit, or 0 for the window
	until   int // the limit up to which it grows by one for each answered packet; beyond, by one for each answered allowance
	answers int // answered packets that count towards the next increase
}

// of returns the part of a window that may be used.
func (a *allowance) of(window int) int {
	if a.packets == 0 {
		return window
	}
	return min(a.packets, window)
}

// loss records that the peer misses some of the packets in flight.
func (a *allowance) loss(underWay int) {
	a.until = max(1, underWay/2)
	a.packets, a.answers = a.until, 0
}

// silence records a timeout. A single packet then finds out what is missing,
// since often only the answer was lost.
func (a *allowance) silence(underWay int) {
	a.loss(max(underWay, 2*a.until)) // losing that packet as well is still the same loss
	a.packets = 1
}

// answered records that the peer has answered more packets.
func (a *allowance) answered(packets, window int) {
	if a.packets == 0 || packets <= 0 {
		return
	}
	if a.packets < a.until {
		grow := min(packets, a.until-a.packets)
		a.packets += grow
		packets -= grow
	}
	for a.answers += packets; a.answers >= a.packets; a.packets++ {
		a.answers -= a.packets
	}
	if a.packets >= window {
		*a = allowance{}
	}
}
