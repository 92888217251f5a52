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
	// slowest is the longest delay of a packet.
	slowest = 200 * time.Microsecond
	// calm is the number of packets to a queue pair that are spared after
	// one was disturbed, so that a packet which is sent again arrives soon.
	calm = 64
	// enough is the number of retries that a requester must have left for
	// its packets to be disturbed.
	enough = 3
)

// hostility makes the network as unfriendly as it can be without losing
// anything.
type hostility struct {
	random *rand.Rand
	flows  map[uint32]*flow // by the number of the queue pair that packets go to
}

// flow is the packets to a queue pair.
type flow struct {
	last time.Duration // when the latest packet arrives
	calm int           // number of packets that are spared
}

// HostileVariable is the environment variable with the seed of the hostile
// mode, unless SetHostile gave one.
const HostileVariable = "VERBENA_HOSTILE"

// SetHostile makes the device and the network unfriendly, from a seed. It fails
// after the device was used first.
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
// chose.
func chosenHostility() *hostility {
	choices.Lock()
	defer choices.Unlock()
	choices.made = true
	if choices.hostile == "" {
		choices.hostile = os.Getenv(HostileVariable)
	}
	return newHostility(choices.hostile)
}

// newHostility returns nil without a seed.
func newHostility(seed string) *hostility {
	if seed == "" {
		return nil
	}
	h := fnv.New64a()
	h.Write([]byte(seed))
	return &hostility{rand.New(rand.NewPCG(h.Sum64(), 0)), map[uint32]*flow{}}
}

// add adds to a fault what else happens to a packet of a reliable connection or
// of the connection manager, which the sender repeats if it gets lost. The
// packet is delayed, in most cases so that it arrives after those that went to
// the queue pair before. Some packets arrive after later ones, or twice.
func (h *hostility) add(d *engine.Device, p *wire.Packet, now time.Duration, f Fault) Fault {
	longest := slowest
	if p.DestQP != wire.GSI {
		timeout, retries, known := d.Patience(p)
		if !known || retries < enough {
			return f
		}
		longest = min(slowest, timeout/64)
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
	case w.calm > 0:
		w.calm--
	case h.random.IntN(16) > 0:
	case h.random.IntN(2) > 0:
		w.calm = calm
		f.Duplicate++
	default:
		w.calm = calm
		f.Delay += longest / 2
		return f // later packets do not wait for it
	}
	f.Delay = max(f.Delay, w.last-now)
	w.last = now + f.Delay
	return f
}
