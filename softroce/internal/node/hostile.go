// SPDX-License-Identifier: Apache-2.0

//go:build linux

package node

import (
	"hash/fnv"
	"math/rand/v2"
	"os"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// maxDelay is the longest delay of a packet in hostile mode.
	maxDelay = 200 * time.Microsecond
	// inOrderPackets is the number of packets to a queue pair that arrive
	// in order after one was duplicated or held back, so that a
	// retransmission soon gets through.
	inOrderPackets = 64
	// minRetries is the number of retries that a requester must have for
	// the hostile mode to disturb its packets.
	minRetries = 3
)

// hostility delays, duplicates and reorders packets. It loses none. Its seed
// decides which packets it disturbs.
type hostility struct {
	random *rand.Rand
	flows  map[uint32]*flow // keyed by the number of the destination queue pair
}

// flow is the state of the packets to one queue pair.
type flow struct {
	last    time.Duration // time at which the latest packet arrives
	inOrder int           // number of further packets that must arrive in order
}

// HostileVariable is the environment variable that has the seed of the hostile
// mode if SetHostile was not called.
const HostileVariable = "VERBENA_HOSTILE"

// SetHostile turns on the hostile mode, in which the network delays, duplicates
// and reorders packets as seed decides. An empty seed leaves the choice to the
// environment. SetHostile fails after the first use of the device, unless seed
// is the one in use.
func SetHostile(seed string) error {
	choices.Lock()
	defer choices.Unlock()
	if choices.made && choices.hostile != seed {
		return errInUse
	}
	choices.hostile = seed
	return nil
}

// chosenHostility returns the hostile mode that SetHostile or the environment
// chose, or nil if neither did.
func chosenHostility() *hostility {
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	if choices.hostile == "" {
		choices.hostile = os.Getenv(HostileVariable)
	}
	return newHostility(choices.hostile)
}

// newHostility returns the hostile mode with a seed, or nil if seed is empty.
func newHostility(seed string) *hostility {
	if seed == "" {
		return nil
	}
	h := fnv.New64a()
	h.Write([]byte(seed))
	return &hostility{rand.New(rand.NewPCG(h.Sum64(), 0)), map[uint32]*flow{}}
}

// add adds to the fault f what the hostile mode does to the packet p at the
// time now. It disturbs only packets of reliable connections and of the
// connection manager, since their senders retransmit. It delays each such
// packet. Most keep their order; some are overtaken by later packets, or arrive
// twice. find returns the node's queue pair with a number, or nil.
func (h *hostility) add(find func(qpn uint32) *engine.QP, p *wire.Packet, now time.Duration, f Fault) Fault {
	longest := maxDelay
	if p.DestQP != wire.GSI {
		timeout, retries, known := engine.RetryLimits(p, find)
		if !known || retries < minRetries {
			return f
		}
		longest = min(maxDelay, timeout/64)
	}
	w := h.flows[p.DestQP]
	if w == nil {
		w = &flow{}
		h.flows[p.DestQP] = w
	}
	delay := time.Duration(h.random.Int64N(int64(longest)))
	if h.random.IntN(4) > 0 {
		delay /= 32 // most packets are fast
	}
	f.Delay += delay
	switch {
	case w.inOrder > 0:
		w.inOrder--
	case h.random.IntN(16) > 0:
	case h.random.IntN(2) > 0:
		w.inOrder = inOrderPackets
		f.Duplicate++
	default:
		w.inOrder = inOrderPackets
		f.Delay += longest / 2
		return f // later packets may overtake this one
	}
	f.Delay = max(f.Delay, w.last-now)
	w.last = now + f.Delay
	return f
}
