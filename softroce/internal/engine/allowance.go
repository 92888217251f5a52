// SPDX-License-Identifier: Apache-2.0

package engine

// allowance is the congestion window of a queue pair after a loss. It limits
// the packets in flight to fewer than the configured window, so that several
// queue pairs adapt to what the network and the peer's buffer can hold.
// Otherwise each would send a whole window again, and lose packets again.
type allowance struct {
	packets int // the limit; 0: no limit besides the configured window
	// threshold is the threshold of slow start. While packets is below it,
	// packets grows by one for each acknowledged packet. Above it, packets
	// grows by one whenever as many packets as it permits were
	// acknowledged.
	threshold int
	acked     int // acknowledged packets that count towards the next increase above threshold
}

// limit returns the number of packets that may be in flight. It is at most
// window.
func (a *allowance) limit(window int) int {
	if a.packets == 0 {
		return window
	}
	return min(a.packets, window)
}

// reduceForLoss halves the limit, as the peer has reported a lost packet.
// inFlight is the number of packets in flight.
func (a *allowance) reduceForLoss(inFlight int) {
	a.threshold = max(1, inFlight/2)
	a.packets, a.acked = a.threshold, 0
}

// reduceForTimeout reduces the limit to one packet after a timeout. The answer
// to that packet shows which packets the peer is missing: often none, since
// only an acknowledgement was lost. inFlight is the number of packets in
// flight.
func (a *allowance) reduceForTimeout(inFlight int) {
	a.reduceForLoss(max(inFlight, 2*a.threshold)) // repeated timeouts do not lower the threshold further
	a.packets = 1
}

// acknowledged raises the limit, as the peer has acknowledged n more packets.
// The limit is lifted once it reaches window.
func (a *allowance) acknowledged(n, window int) {
	if a.packets == 0 || n <= 0 {
		return
	}
	if a.packets < a.threshold {
		grow := min(n, a.threshold-a.packets)
		a.packets += grow
		n -= grow
	}
	for a.acked += n; a.acked >= a.packets; a.packets++ {
		a.acked -= a.packets
	}
	if a.packets >= window {
		*a = allowance{}
	}
}
