// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Requests in a row whose memory is in one region keep it once, and each
// request finds its place.
func TestRequestsShareRegion(t *testing.T) {
	e := newEnds(t, 1, false)
	engine := e.dialed.engine
	local := engine.cacheOf(t, e.memory)
	other, err := engine.Alloc(4096, RegionConfig{})
	require.NoError(t, err)
	b := e.dialed.NewBatch(6)
	require.NoError(t, b.Write(e.remote, 0, nil))
	for _, at := range []int{0, 4096, 100} {
		require.NoError(t, b.Write(e.remote, 0, e.memory[at:at+10]))
	}
	require.NoError(t, b.WriteRegion(e.remote, 0, local, 7, 10))
	require.NoError(t, b.Write(e.remote, 0, other.Bytes()))
	users := func(r *Region) int {
		engine.cache.mu.Lock()
		defer engine.cache.mu.Unlock()
		return r.users
	}
	for range 2 {
		require.NoError(t, b.acquire())
		require.Equal(t, 1, users(local))
		require.Equal(t, 1, users(other))
		for i, at := range []int{0, 4096, 100, 7} {
			require.Same(t, local, b.requests[1+i].local)
			require.Equal(t, at, b.requests[1+i].at)
		}
		require.Same(t, other, b.requests[5].local)
		b.release()
		require.Zero(t, users(local))
		require.Zero(t, users(other))
	}
	e.carryOut(b)
	require.NoError(t, other.Close())
}

// A region is withdrawn although other memory cannot be deregistered that
// overlaps it.
func TestCloseOfRegionGoesOn(t *testing.T) {
	e := newEnds(t, 1, false)
	engine := e.dialed.engine
	b := make([]byte, 200)
	engine.cacheOf(t, b)
	deregister, fails := engine.cache.deregister, true
	engine.cache.deregister = func(r *Region) error {
		if fails {
			return syscall.EBUSY
		}
		return deregister(r)
	}
	r, err := engine.Register(b[:100], RegionConfig{Name: "region", Access: ReadAccess})
	require.NoError(t, err)
	remote, err := e.accepted.Region(e.ctx, "region")
	require.NoError(t, err)
	require.ErrorIs(t, r.Close(), syscall.EBUSY)
	e.accepted.mu.Lock()
	require.True(t, remote.withdrawn)
	e.accepted.mu.Unlock()
	require.Nil(t, r.mrs[0].Load())
	require.ErrorIs(t, r.Close(), syscall.EBUSY)
	fails = false
	require.NoError(t, r.Close())
}

// cacheOf returns the region that the cache finds for memory.
func (e *Engine) cacheOf(t *testing.T, memory []byte) *Region {
	t.Helper()
	r, err := e.cache.acquire(memory, false)
	require.NoError(t, err)
	e.cache.release(r)
	return r
}

// Rounds begin with the same path while nothing of it is in flight, but each
// path has its share.
func TestFirstPath(t *testing.T) {
	const paths = 3
	s := &session{}
	for range paths {
		s.up = append(s.up, &path{})
	}
	counts := map[*path]int{}
	changes, last := 0, (*path)(nil)
	for range paths * roundsInRow * 10 {
		s.chooseFirst()
		p := s.up[s.first%paths]
		counts[p]++
		if last != nil && p != last {
			changes++
		}
		last = p
	}
	for _, p := range s.up {
		require.InDelta(t, roundsInRow*10, counts[p], 1)
	}
	require.Equal(t, paths*10, changes)
	last.inFlight = 1
	s.chooseFirst()
	require.NotSame(t, last, s.up[s.first%paths])
}
