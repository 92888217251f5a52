// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// setPlaces sets the number of places until the test ends, when all must be
// free. It forgets refusals, which a new policy would make up for.
func setPlaces(t *testing.T, p *places, n int32) {
	before := p.n
	p.n = n
	p.refusals.Store(0)
	t.Cleanup(func() {
		p.n = before
		require.Zero(t, p.taken.Load(), "places that are still taken")
	})
}

// A configuration sets the limit for spins, and whether waits nap.
func TestWaitPolicyOfConfig(t *testing.T) {
	for name, tt := range map[string]struct {
		config CQConfig
		limit  time.Duration
		attend time.Duration
		noNaps bool
	}{
		"default":               {CQConfig{}, DefaultSpin, DefaultSpin, false},
		"own limit":             {CQConfig{Spin: time.Millisecond}, time.Millisecond, time.Millisecond, false},
		"too long":              {CQConfig{Spin: time.Hour}, time.Hour, MaxSpin, false},
		"never":                 {CQConfig{Spin: -1}, 0, DefaultSpin, true},
		"solicited only":        {CQConfig{SolicitedOnly: true, Spin: time.Millisecond}, 0, time.Millisecond, false},
		"solicited only, never": {CQConfig{SolicitedOnly: true, Spin: -1}, 0, DefaultSpin, true},
	} {
		t.Run(name, func(t *testing.T) {
			var p waitPolicy
			p.init(tt.config, false)
			require.Equal(t, tt.limit, p.spinLimit)
			require.Equal(t, tt.attend, p.attendLimit)
			require.Equal(t, tt.noNaps, p.noNaps)
		})
	}
}

func TestSpinsOnlyAfterSuccess(t *testing.T) {
	setPlaces(t, &spinPlaces, 1)
	var p waitPolicy
	p.init(CQConfig{}, false)
	require.False(t, p.beginSpin(&p.spins, true), "nothing is known yet")
	for range 2 * bestScore {
		p.spins.add(true)
	}
	failures := 0
	for ; p.beginSpin(&p.spins, true); failures++ {
		p.endSpin(false)
	}
	require.Equal(t, bestScore/failureCost, failures)
	p.spins.add(false)
	p.spins.add(true)
	require.True(t, p.beginSpin(&p.spins, true), "a success soon outweighs failures")
	p.endSpin(true)
}

func TestSpinningParksOnceInAWhile(t *testing.T) {
	setPlaces(t, &spinPlaces, 1)
	var p waitPolicy
	p.init(CQConfig{}, false)
	p.spins.add(true)
	parked := 0
	for range 3 * (spinsPerYield + 1) {
		if p.beginSpin(&p.spins, true) {
			p.endSpin(true)
		} else {
			parked++
		}
	}
	require.Equal(t, 3, parked)
}

// With a single processor, no wait spins or naps.
func TestNoPlaces(t *testing.T) {
	setPlaces(t, &spinPlaces, 0)
	setPlaces(t, &napPlaces, 0)
	var p waitPolicy
	p.init(CQConfig{}, false)
	p.spins.add(true)
	p.naps.add(true)
	for range 3 * (spinsPerYield + 1) {
		require.False(t, p.beginSpin(&p.spins, true))
	}
	require.Zero(t, p.spins.tries.Load())
	require.False(t, p.wantsNap())
}

func TestFewSpin(t *testing.T) {
	setPlaces(t, &spinPlaces, 2)
	policies := make([]waitPolicy, 3)
	for i := range policies {
		policies[i].init(CQConfig{}, false)
		policies[i].spins.add(true)
	}
	require.True(t, policies[0].beginSpin(&policies[0].spins, true))
	require.True(t, policies[1].beginSpin(&policies[1].spins, true))
	require.False(t, policies[2].beginSpin(&policies[2].spins, true))
	policies[0].endSpin(true)
	require.False(t, policies[0].beginSpin(&policies[0].spins, true), "another one that was refused takes its turn")
	require.True(t, policies[2].beginSpin(&policies[2].spins, true))
	policies[1].endSpin(true)
	policies[2].endSpin(true)
	require.True(t, policies[0].beginSpin(&policies[0].spins, true))
	policies[0].endSpin(true)

	var never waitPolicy
	never.init(CQConfig{Spin: -1}, false)
	never.spins.add(true)
	require.False(t, never.beginSpin(&never.spins, true))
}

func TestNapsOnlyAfterSuccess(t *testing.T) {
	setPlaces(t, &napPlaces, 1)
	var p waitPolicy
	require.False(t, p.wantsNap(), "nothing is known yet")
	require.True(t, p.wantsPoll())
	unwatch := 0
	for i := range 3 * napsToUnwatch {
		if p.addNap(true) {
			unwatch++
			require.Equal(t, unwatch*napsToUnwatch-1, i)
		}
		require.True(t, p.wantsNap())
	}
	require.Equal(t, 3, unwatch)
	require.False(t, p.wantsPoll())

	failures := 0
	for ; p.wantsNap(); failures++ {
		require.False(t, p.addNap(false))
	}
	require.Equal(t, bestScore/failureCost, failures)
	for range napsToUnwatch - 1 {
		require.False(t, p.addNap(true))
	}
	require.False(t, p.addNap(false), "a failure ends the row")
	for range napsToUnwatch - 1 {
		require.False(t, p.addNap(true))
	}
	p.beginPark()
	require.False(t, p.addNap(true), "a wait that parks ends the row")

	p.noNaps = true
	require.False(t, p.wantsNap())
}

func TestFewNap(t *testing.T) {
	setPlaces(t, &napPlaces, 1)
	var p waitPolicy
	p.naps.add(true)
	require.True(t, p.beginNap())
	require.False(t, p.beginNap())
	p.endNap(true, 0)
	require.True(t, p.beginNap())
	p.endNap(true, 0)
}

// Each completion tells of both ways, whatever the wait did.
func TestWaitTeachesBothWays(t *testing.T) {
	setPlaces(t, &napPlaces, 1)
	nap := func(success bool, took time.Duration) func(*waitPolicy) {
		return func(p *waitPolicy) {
			require.True(t, p.beginNap())
			p.endNap(success, took)
		}
	}
	park := func(took time.Duration) func(*waitPolicy) { return func(p *waitPolicy) { p.endPark(took) } }
	for name, tt := range map[string]struct {
		wait        func(*waitPolicy)
		spins, naps int32 // scores, from 2 each
	}{
		"a nap within the limit for spins":    {nap(true, DefaultSpin), 3, 3},
		"a nap within its own limit":          {nap(true, napLimit), 0, 3},
		"a nap that sees nothing":             {nap(false, napLimit), 0, 0},
		"parking within the limit for spins":  {park(DefaultSpin), 3, 3},
		"parking within the limit for naps":   {park(napLimit), 0, 3},
		"parking for longer than either does": {park(napLimit + 1), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var p waitPolicy
			p.init(CQConfig{}, false)
			p.spins.score.Store(2)
			p.naps.score.Store(2)
			tt.wait(&p)
			require.Equal(t, tt.spins, p.spins.score.Load(), "score of spins")
			require.Equal(t, tt.naps, p.naps.score.Load(), "score of naps")
		})
	}
}

// Waits that park at both ends, and so take longer than the limit for spins,
// try a spin in the end.
func TestParkingTriesASpin(t *testing.T) {
	setPlaces(t, &spinPlaces, 1)
	var p waitPolicy
	p.init(CQConfig{}, false)
	for range 2 * nearlyPerSpin {
		p.endPark(nearlySpins*DefaultSpin + 1)
		require.False(t, p.beginSpin(&p.spins, true), "a spin would not have come close")
	}
	p.spins.score.Store(-1)
	for range nearlyPerSpin - 1 {
		p.endPark(2 * DefaultSpin)
		require.False(t, p.beginSpin(&p.spins, true))
	}
	p.endPark(2 * DefaultSpin)
	require.True(t, p.beginSpin(&p.spins, true))
	p.endSpin(false)
	require.False(t, p.beginSpin(&p.spins, true))
}

// On a device of this process, a wait that could spin does so only for a
// conversation with another process.
func TestIsTalking(t *testing.T) {
	var p waitPolicy
	require.False(t, p.spins.isTalking(0, false))
	require.True(t, p.spins.isTalking(1, false))
	require.False(t, p.spins.isTalking(1, false), "nothing has come since then")
	require.False(t, p.spins.isTalking(2, true), "another goroutine can run")
	require.True(t, p.spins.isTalking(3, false))

	p.init(CQConfig{}, true)
	p.naps.add(true)
	require.False(t, p.wantsNap())
}

func TestPlacesOf(t *testing.T) {
	for processors, most := range map[int]int32{1: 0, 2: 1, 3: 1, 4: 1, 7: 1, 8: 2, 64: 16} {
		require.Equal(t, most, placesOf(processors), "of %d processors", processors)
	}
}

func TestPlaces(t *testing.T) {
	p := places{n: 2}
	var seen [3]atomic.Uint32
	require.True(t, p.take(&seen[0]))
	require.True(t, p.take(&seen[1]))
	require.False(t, p.take(&seen[2]))
	p.leave()
	require.False(t, p.take(&seen[0]), "another one that was refused takes its turn")
	require.True(t, p.take(&seen[2]))
	p.leave()
	p.leave()
	require.True(t, p.take(&seen[0]))
	p.leave()
	require.Zero(t, p.taken.Load())
}
