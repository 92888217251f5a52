// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-go/verbena/internal/datapath"
)

// waitPolicy decides how CQ.Wait waits while its queue is empty. A wait has
// three ways to learn of a completion:
//
//   - It spins: it polls the queue in a loop. It sees the completion at once,
//     but keeps a processor busy.
//   - It naps: it sleeps in C for a moment. The kernel itself wakes the
//     goroutine's thread. But the nap occupies that thread and, until the
//     runtime's monitor takes it away, a processor of the runtime. Only an
//     event ends a nap early, so deadlines and Close may have to wait for it.
//   - It parks: it leaves the waiting to the runtime's netpoller. Parking
//     occupies no thread and no processor, but the wake-up goes by way of
//     another thread, which costs several context switches and system calls.
//     A device in this process wakes a parked goroutine by itself, without
//     the netpoller.
//
// A wait spins, then naps, then parks. It leaves out spinning unless recent
// completions of the queue usually came within the limit for spins, and napping
// unless they usually came within the limit for naps. Each completion that ends
// a wait tells whether a spin and a nap would have seen it, whatever the wait
// did. So if the completions of a queue begin to come late, its waits soon park
// at once, and if they begin to come early again, its waits soon spin.
//
// Two ends that both park wait for two wake-ups, which may take longer than the
// limit for spins, though the completions would come early if the ends spun. So
// after several waits that parked and took a few times the limit, one spins.
//
// With a device in this process, a wait does the device's work: it attends, for
// as long as it waits, or spins if another goroutine attends, which parks soon
// if it waits for long and this queue's waits are short. It parks instead
// if the program's last request has woken other goroutines, which run as soon
// as the caller parks, or if nothing has come from another process since the
// queue's last wait: then the peer is another goroutine.
//
// Over all queues, only few goroutines spin at a time, and as few nap. If they
// occupied all processors of the runtime, the goroutines that they wait for
// could not run, nor would the runtime check the netpoller, which the
// goroutines that park wait for. A goroutine that was refused gets the next
// place.
//
// A goroutine that finds its completions by spinning or napping never parks,
// and so never lets other goroutines run. Therefore every so many spins and
// naps it yields.
//
// While the netpoller watches the queue's channel, each event wakes a thread
// of the runtime, for nothing if the wait naps. After many successful naps in
// a row the channel is therefore taken from the netpoller, until a wait parks
// again.
type waitPolicy struct {
	spinLimit   time.Duration // longest time of a spin; 0 means that waits never spin
	attendLimit time.Duration // longest time for which a wait that does the device's work watches for more before it parks
	noNaps      bool
	device      bool // whether a device in this process has the queue
	spins       record
	beside      record // of spins of callers beside a goroutine that is parked in Wait
	naps        record
	napsInRow   int // successful naps since a wait parked or a nap failed; guarded by CQ.turn
}

// DefaultSpin is how long CQ.Wait spins before it parks if CQConfig.Spin is 0.
const DefaultSpin = 50 * time.Microsecond

const (
	// napLimit is the longest time of a nap.
	napLimit = 500 * time.Microsecond
	// spinsPerYield is the number of waits that spin before one wait yields
	// instead, or also, with a device in this process.
	spinsPerYield = 32
	// napsPerYield is the number of naps after which a goroutine yields
	// once, before its next nap.
	napsPerYield = 32
	// nearlySpins is the time, as a multiple of the limit for spins, within
	// which a wait that parked nearly saw what a spin sees.
	nearlySpins = 4
	// nearlyPerSpin is the number of such waits after which one spins.
	nearlyPerSpin = 16
	// napsToUnwatch is the number of successful naps in a row after which the
	// netpoller stops watching the channel.
	napsToUnwatch = 32
)

// init sets the limits for a queue with the configuration. device reports
// whether a device in this process has the queue. If so, waits do not nap: a
// thread that sleeps in C does none of the device's work.
func (p *waitPolicy) init(config CQConfig, device bool) {
	p.device, p.noNaps = device, device || config.Spin < 0
	p.attendLimit = min(max(config.Spin, DefaultSpin), MaxSpin)
	switch {
	case config.SolicitedOnly: // spinning would see other completions too
		p.spinLimit = 0
	case config.Spin == 0:
		p.spinLimit = DefaultSpin
	default:
		p.spinLimit = max(config.Spin, 0)
	}
}

// beginSpin reports whether the caller, whose spins are recorded in r, may
// spin. If so, the caller leaves its place among spinPlaces afterwards.
func (p *waitPolicy) beginSpin(r *record, talks bool) bool {
	if p.spinLimit == 0 || spinPlaces.n == 0 || !r.isGood() || p.device && !talks {
		return false
	}
	if r.tries.Add(1)%(spinsPerYield+1) == 0 {
		runtime.Gosched() // the completion may be there before the caller parks
		if !p.device {    // its goroutine would wake for each wait that parks
			return false
		}
	}
	return spinPlaces.take(&r.refusals)
}

// talks reports whether the queue is one of a device in this process, seems to
// wait for another process, and no goroutine of this process waits for the
// caller to park.
func (p *waitPolicy) talks(r *record) bool {
	return p.device && r.isTalking(datapath.Received(), datapath.WokeOthers())
}

// isTalking reports whether the queue seems to wait for another process, and no
// goroutine of this process waits for the caller to park. The arguments are the
// results of package datapath's functions.
func (r *record) isTalking(received uint32, wokeOthers bool) bool {
	return r.received.Swap(received) != received && !wokeOthers
}

// endSpin records whether the spin saw a completion.
func (p *waitPolicy) endSpin(success bool) {
	spinPlaces.leave()
	p.spins.add(success)
}

// wantsNap reports whether a nap is likely to see a completion.
func (p *waitPolicy) wantsNap() bool { return !p.noNaps && napPlaces.n > 0 && p.naps.isGood() }

// wantsPoll reports whether a wait polls before anything else. It does not if a
// nap comes next, which begins with a poll.
func (p *waitPolicy) wantsPoll() bool { return !p.wantsNap() || p.spins.isGood() }

// beginNap reports whether the caller may nap. If so, the caller calls endNap
// afterwards. wantsNap must have returned true.
func (p *waitPolicy) beginNap() bool {
	if p.naps.tries.Add(1)%napsPerYield == 0 {
		runtime.Gosched()
	}
	return napPlaces.take(&p.naps.refusals)
}

// endNap records whether the nap saw a completion, and after what time. It
// returns true if the netpoller need not watch the channel any more.
func (p *waitPolicy) endNap(success bool, took time.Duration) (unwatch bool) {
	napPlaces.leave()
	p.spins.add(success && took <= p.spinLimit)
	return p.addNap(success)
}

func (p *waitPolicy) addNap(success bool) (unwatch bool) {
	p.naps.add(success)
	if p.napsInRow++; !success {
		p.napsInRow = 0
	}
	if unwatch = p.napsInRow == napsToUnwatch; unwatch {
		p.napsInRow = 0
	}
	return unwatch
}

// beginPark records that the netpoller watches the channel.
func (p *waitPolicy) beginPark() { p.napsInRow = 0 }

// endPark records after what time the completion came for which a wait parked,
// or would have.
func (p *waitPolicy) endPark(took time.Duration) {
	p.spins.note(took, p.spinLimit)
	p.addNap(took <= napLimit)
}

// record tells whether spins or naps on one queue were successful lately.
type record struct {
	// score rises by 1 with each success, to at most bestScore, and falls by
	// failureCost with each failure. The record is good while it is positive.
	score    atomic.Int32
	tries    atomic.Uint32 // number of times that a wait wanted to spin or to nap
	refusals atomic.Uint32 // number of refusals that the queue has seen; see places.take
	received atomic.Uint32 // result of datapath.Received at the last wait that could have spun
	nearly   atomic.Uint32 // number of waits that parked and nearly saw what a spin sees
}

const (
	bestScore = 8
	// A failure counts more than a success, since a spin or nap that fails
	// takes the whole limit.
	failureCost = 2
)

// isGood reports whether the spins or naps have usually succeeded.
func (r *record) isGood() bool { return r.score.Load() > 0 }

// add records whether a spin or nap has succeeded, or would have.
func (r *record) add(success bool) {
	score := r.score.Load()
	switch {
	case success && score < bestScore:
		r.score.Store(score + 1)
	case !success && score > 0:
		r.score.Store(score - failureCost)
	}
}

// note records how long a wait took that parked. limit is the longest time of a
// spin.
func (r *record) note(took, limit time.Duration) {
	r.add(took <= limit)
	if took > limit && took <= nearlySpins*limit && r.nearly.Add(1)%nearlyPerSpin == 0 {
		r.score.Store(max(r.score.Load(), 1))
	}
}

// places limits how many goroutines spin or nap at a time. The goroutines of
// different queues take turns.
type places struct {
	n        int32
	taken    atomic.Int32
	refusals atomic.Uint32
}

var (
	spinPlaces = places{n: placesOf(runtime.GOMAXPROCS(0))}
	napPlaces  = places{n: placesOf(runtime.GOMAXPROCS(0))}
)

// placesOf returns the number of places if the runtime has the given number of
// processors: a quarter of that number, or 1 for two or three processors.
func placesOf(processors int) int32 { return int32(max(processors/4, min(processors-1, 1))) }

// take reports whether the caller gets a place, which the caller must leave
// afterwards. seen is the number of refusals that the queue has seen. If there
// were more refusals since, take refuses the caller, so that the refused ones
// go first.
func (p *places) take(seen *atomic.Uint32) bool {
	if refusals := p.refusals.Load(); seen.Swap(refusals) != refusals {
		return false
	}
	if p.taken.Add(1) > p.n {
		p.taken.Add(-1)
		seen.Store(p.refusals.Add(1))
		return false
	}
	return true
}

func (p *places) leave() { p.taken.Add(-1) }
