// SPDX-License-Identifier: Apache-2.0

package engine

// allowance is how many packets a queue pair may have under way since some were lost: fewer than the window, so that several
// queue pairs find out together what the way to a peer, and its buffer, have room for. Otherwise each would send its whole window again, and so
// lose it again.
type allowance struct {
	packets int // 0: the window
	until   int // up to which each answer allows as many more as it answers; beyond, all answers together one
	answers int // that count towards the next one
}

// of returns how much of a window is allowed.
func (a *allowance) of(window int) int {
	if a.packets == 0 {
		return window
	}
	return min(a.packets, window)
}

// loss notes that the peer misses some of the packets under way.
func (a *allowance) loss(underWay int) {
	a.until = max(1, underWay/2)
	a.packets, a.answers = a.until, 0
}

// silence notes that nothing is heard of the peer: one packet finds out what is missing, since often that is only the answer.
func (a *allowance) silence(underWay int) {
	a.loss(max(underWay, 2*a.until)) // it is the same loss when that packet gets lost, too
	a.packets = 1
}

// answered notes that the peer has answered so many packets more.
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
