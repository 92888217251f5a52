// SPDX-License-Identifier: Apache-2.0

package rdmacm

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFIFO(t *testing.T) {
	var f fifo[int]
	next, first := 0, 0
	random := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		if f.len() == 0 || random.IntN(100) < 51 {
			f.push(next)
			next++
			continue
		}
		require.Equal(t, first, f.pop())
		first++
	}
	require.Equal(t, next-first, f.len())
	for f.len() > 0 {
		require.Equal(t, first, f.pop())
		first++
	}
	require.Equal(t, next, first)
}

// The table finds its entries and nothing else, even while other entries come
// and go.
func TestQPTable(t *testing.T) {
	for name, stride := range map[string]uint32{"in sequence": 1, "in steps": 1 << 12, "the same low bits": 1 << 16} {
		t.Run(name, func(t *testing.T) {
			const stay, come, rounds = 50, 20, 200
			var table qpTable
			require.Nil(t, table.find(7))
			table.remove(new(pooled))
			var staying []*pooled
			for i := range uint32(stay) {
				o := &pooled{ops: &operations{num: 1 + i*stride}}
				staying = append(staying, o)
				table.add(o)
			}
			done := make(chan struct{})
			var finding sync.WaitGroup
			finding.Go(func() {
				for {
					for _, o := range staying {
						if table.find(o.ops.num) != o {
							t.Errorf("queue pair %d is not found", o.ops.num)
							return
						}
					}
					select {
					case <-done:
						return
					default:
					}
				}
			})
			for range rounds {
				var coming []*pooled
				for i := range uint32(come) {
					o := &pooled{ops: &operations{num: 1<<23 + i*stride}}
					coming = append(coming, o)
					require.True(t, table.find(o.ops.num) == nil)
					table.add(o)
					require.True(t, table.find(o.ops.num) == o)
				}
				for _, o := range coming {
					table.remove(o)
					require.True(t, table.find(o.ops.num) == nil)
					table.remove(o)
				}
			}
			close(done)
			finding.Wait()
			require.LessOrEqual(t, len(*table.entries.Load()), 8*(stay+come))
		})
	}
}

// Tags are never 0 and stay clear of the bits above them. They differ.
func TestTags(t *testing.T) {
	seen := map[uint64]bool{}
	for _, n := range []uint64{0, 1, 2, 1<<tagBits - 2, 1 << 20} {
		tag := tagged(n)
		require.NotZero(t, tag)
		require.Zero(t, tag&(userRequest|lastRequest|sharedReceive))
		require.Zero(t, tag&(1<<placeBits-1))
		require.False(t, seen[tag])
		seen[tag] = true
	}
	require.Equal(t, tagged(0), tagged(1<<tagBits-1), "they begin again")
}

// offlineReceives returns receives of which so many, from the first one on, are
// posted. It posts no others.
func offlineReceives(posted int) *sharedReceives {
	s := &sharedReceives{loses: true, slots: make([]sharedSlot, posted+4)}
	for i := range posted {
		s.slots[i].number = uint64(i + 1)
	}
	s.posted, s.last = posted, uint64(posted)
	return s
}

// A receive that later ones have overtaken is lost when every connection that
// could have it has ended, or has completed a later one.
func TestLostReceives(t *testing.T) {
	type conn struct{ serial, received uint64 }
	var conns []conn
	live := func(f func(serial, received uint64)) {
		for _, c := range conns {
			f(c.serial, c.received)
		}
	}
	s := offlineReceives(6)
	a, b := s.join(), s.join()
	conns = []conn{{a, 0}, {b, 0}}
	require.EqualValues(t, 2, s.take(1), "connection b completes the second")
	conns[1].received = 2
	require.False(t, s.low.Load())

	// Connection a ends within a message that the first receive has taken.
	conns = conns[1:]
	s.left(live)
	require.Equal(t, []uint32{0}, s.free, "b has taken a later one, so only a can have had it")
	require.Zero(t, s.suspects)
	require.Equal(t, 4, s.posted)
	require.True(t, s.unsettled(), "a may have had any of the others")

	// Connection c completes the fourth receive. The third is not back, and b
	// or c may have it.
	c := s.join()
	conns = append(conns, conn{c, 4})
	require.EqualValues(t, 4, s.take(3))
	s.settle(live)
	require.Equal(t, 1, s.suspects)
	require.Len(t, s.free, 1)
	require.EqualValues(t, 3, s.take(2), "it was b's")
	require.Zero(t, s.suspects)
	require.Zero(t, s.take(2), "it is not posted")
	conns[0].received = 3

	// The fifth receive is overtaken, too. A connection that came later cannot
	// have it. A connection that never received can.
	d := s.join()
	conns = append(conns, conn{d, 0})
	require.EqualValues(t, 6, s.take(5))
	conns[1].received = 6
	s.settle(live)
	require.Equal(t, 1, s.suspects)
	require.Zero(t, s.lastAtEnd, "all that may be lost is suspect")
	conns = append(conns, conn{s.join(), 0})
	conns[0].received = 7
	s.settle(live)
	require.Equal(t, 1, s.suspects, "d can have it")
	conns[2].received = 8
	s.settle(live)
	require.Zero(t, s.suspects)
	require.Equal(t, []uint32{0, 4}, s.free)
	require.False(t, s.unsettled())
	require.Zero(t, s.posted)
}

// On a device that loses no receives, there are no suspects.
func TestNoReceivesAreLost(t *testing.T) {
	s := offlineReceives(3)
	s.loses = false
	require.EqualValues(t, 3, s.take(2))
	s.left(func(func(serial, received uint64)) { require.Fail(t, "no caller asks") })
	require.False(t, s.unsettled())
	require.Equal(t, 2, s.posted)
	require.Zero(t, s.take(99))
}
