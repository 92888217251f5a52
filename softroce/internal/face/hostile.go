// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package face

import (
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/verbena-go/verbena/softroce/internal/engine"
	"github.com/verbena-go/verbena/softroce/internal/link"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

const (
	// slowest is the longest delay of a packet.
	slowest = 200 * time.Microsecond
	// calm is how many packets to a queue pair are spared after one that was disturbed, so that
	// sending again soon helps.
	calm = 64
	// enough is how often a requester must be ready to send again for its packets to be disturbed.
	enough = 3
)

// hostility makes the network as unfriendly as it may be without losing anything.
type hostility struct {
	random *rand.Rand
	flows  map[uint32]*flow // by the number of the queue pair that packets go to
}

// flow is what goes to a queue pair.
type flow struct {
	last time.Duration // when the latest packet arrives
	calm int           // so many packets are spared
}

// HostileVariable is the environment variable with the seed of the hostile mode, unless SetHostile gave one.
const HostileVariable = "VERBENA_HOSTILE"

// SetHostile makes the device and the network unfriendly, from a seed. It must come before the device is
// first used.
func SetHostile(seed string) error {
	choices.Lock()
	defer choices.Unlock()
	if choices.made && choices.hostile != seed {
		return errors.New("the device is in use already")
	}
	choices.hostile = seed
	return nil
}

// choices are what is decided before there is a node.
var choices struct {
	sync.Mutex
	made     bool // the node is
	hostile  string
	opened   bool // the network is decided
	network  string
	internet *internet  // nil: the machine's network
	link     *link.Link // nil: it is not the machine\'s network that was opened
}

// chosenHostility returns what the program or else the environment wants.
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

// add adds to a fault what else happens to a packet of a reliable connection or of the connection manager: what is sent
// again if it gets lost. It is delayed, mostly behind what went to the same queue pair before. Some come later than those
// behind them, or twice.
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
		delay /= 32 // most are fast
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
		return f // those behind it do not wait for it
	}
	f.Delay = max(f.Delay, w.last-now)
	w.last = now + f.Delay
	return f
}
