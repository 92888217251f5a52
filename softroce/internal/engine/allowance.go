// SPDX-License-Identifier: Apache-2.0

package engine

// allowance is the congestion window of a queue pair after a loss. It limits
// the packets in flight to fewer than the configured window, so that several
// queue pairs adapt to what the network and the peer's buffer can hold.
// Otherwise each would send a whole window again, and lose packets again.
type allowance struct {
	packets int // the limit; 0: no limit besides the configured window
	// until is the threshold of slow start. Below it, packets grows by one
	// for each packet that is acknowledged; above it, by one for each full
	// limit of them.
	until   int
	answers int // acknowledged packets that count towards the next increase
}

// of returns the number of packets that may be in flight, at most window.
func (a *allowance) of(window int) int {
	if a.packets == 0 {
		return window
	}
	return min(a.packets, window)
}

// loss reduces the limit, as the peer reported a lost packet. underWay is the
// number of packets in flight.
func (a *allowance) loss(underWay int) {
	a.until = max(1, underWay/2)
	a.packets, a.answers = a.until, 0
}

// silence reduces the limit to one packet after a timeout. The answer to that
// packet shows what is missing, since often only an acknowledgement was lost.
// underWay is the number of packets in flight.
func (a *allowance) silence(underWay int) {
	a.loss(max(underWay, 2*a.until)) // repeated timeouts do not lower the threshold further
	a.packets = 1
}

// answered raises the limit, as the peer has acknowledged that many more
// packets.
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
