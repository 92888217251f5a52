// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// copier is a loop that leaves large copies to the test.
type copier struct {
	*loop
	a, b   *end
	copies *Copies
	taken  []*LateCopy
}

func newCopier(t *testing.T, bytes int) *copier {
	l, a, b := newLoop(t, bytes)
	c := &copier{loop: l, a: a, b: b, copies: &Copies{}}
	c.copies.Await = func() {
		for _, t := range c.taken { // threads make them
			t.Make()
		}
	}
	l.Device.config.Merges = func() bool { return true }
	l.Device.config.Copies = c.copies
	return c
}

// until works until nothing is left to do at the time now.
func (c *copier) until(now time.Duration) {
	for {
		next := c.Advance(now)
		if len(c.inbox) == 0 && next > now {
			return
		}
		inbox := c.inbox
		c.inbox = nil
		for _, p := range inbox {
			c.Receive(p)
		}
	}
}

// take takes the copy that was left.
func (c *copier) take() *LateCopy {
	t := c.copies.Take(anyCopy)
	require.NotNil(c.t(), t)
	c.taken = append(c.taken, t)
	return t
}

func anyCopy(*LateCopy) bool { return true }

func (c *copier) t() testing.TB { return c.node.t }

// finish makes and finishes all copies.
func (c *copier) finish(now time.Duration) {
	for len(c.taken) > 0 || c.copies.Oldest() > 0 {
		if len(c.taken) == 0 {
			c.take()
		}
		t := c.taken[0]
		c.taken = slices.Delete(c.taken, 0, 1)
		t.Make()
		t.Finish()
		c.until(now)
	}
	require.Empty(c.t(), c.copies.unfinished)
}

const copied = 700 << 10 // bytes of a WRITE whose copies are left

// What follows a WRITE whose copy is left has its effect only after it, in
// order.
func TestCopiesOrder(t *testing.T) {
	c := newCopier(t, copied+64)
	pattern(c.a.mr.memory, 3)
	c.b.postRecv(10, c.b.mr.sge(copied, 8))
	c.b.postRecv(11)
	c.a.post(SendSlot{ID: 1, Opcode: write}.remote(c.b, 0), c.a.mr.sge(0, copied))
	c.a.post(SendSlot{ID: 2, Opcode: send}, c.a.mr.sge(8, 8))
	c.a.post(SendSlot{ID: 3, Opcode: fetchAdd, CompareAdd: 1}.remote(c.b, 0), c.a.mr.sge(copied, 8))
	c.a.post(SendSlot{ID: 4, Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}.remote(c.b, 0), c.a.mr.sge(0, copied))
	c.until(0)
	require.NotNil(t, c.b.qp.responder.copy)
	require.NotEmpty(t, c.b.qp.responder.held)
	require.Empty(t, results(c.a.send))
	require.Empty(t, results(c.b.recv))
	require.Equal(t, make([]byte, copied+64), c.b.mr.memory, "nothing is copied before the owner does")
	copies := 0
	for c.copies.Oldest() > 0 {
		copies++
		c.taken = append(c.taken, c.copies.Take(anyCopy))
		require.Zero(t, c.copies.Oldest(), "one copy of a queue pair at a time")
		done := c.taken[0]
		c.taken = nil
		done.Make()
		done.Finish()
		c.until(0)
	}
	require.Greater(t, copies, 2)
	require.Empty(t, c.copies.unfinished)
	require.Empty(t, c.b.qp.responder.held)
	require.Equal(t, []result{ok(1), ok(2), ok(3), ok(4)}, results(c.a.send))
	require.Equal(t, []result{ok(10), ok(11)}, results(c.b.recv))
	require.Equal(t, c.a.mr.memory[:copied], c.b.mr.memory[:copied])
	require.Equal(t, *word(patternOf(8, 3), 0), *word(c.a.mr.memory, copied), "the atomic came after the WRITE")
	require.Zero(t, c.a.qp.retries)
}

// Whatever gives memory back to the program while a copy is left, or being
// made, waits for the copy, and nothing uses the memory afterwards.
func TestCopiesSettle(t *testing.T) {
	for name, tt := range map[string]struct {
		happens func(c *copier)
		ends    bool // whether the WRITE does not complete, or fails
		target  bool // whether the program gets the target back
	}{
		"target is deregistered": {func(c *copier) { require.NoError(c.t(), c.b.mr.Deregister()) }, true, true},
		"source is deregistered": {func(c *copier) { require.NoError(c.t(), c.a.mr.Deregister()) }, true, false},
		"target is registered anew": {func(c *copier) {
			require.NoError(c.t(), c.b.mr.Rereg(libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION, nil, make([]byte, 4096), 0, allAccess|libibverbs.IBV_ACCESS_ZERO_BASED))
		}, true, true},
		"requester fails":        {func(c *copier) { c.a.modify(libibverbs.IBV_QPS_ERR) }, true, false},
		"responder fails":        {func(c *copier) { c.b.modify(libibverbs.IBV_QPS_ERR) }, true, true},
		"requester is reset":     {func(c *copier) { c.a.modify(libibverbs.IBV_QPS_RESET) }, true, false},
		"responder is reset":     {func(c *copier) { c.b.modify(libibverbs.IBV_QPS_RESET) }, true, true},
		"requester is destroyed": {func(c *copier) { require.NoError(c.t(), c.a.qp.Destroy()) }, true, false},
		"responder is destroyed": {func(c *copier) { require.NoError(c.t(), c.b.qp.Destroy()) }, true, true},
		"device is removed":      {func(c *copier) { c.Remove() }, true, true},
		"permission is taken away": {func(c *copier) {
			require.NoError(c.t(), c.b.qp.Modify(&libibverbs.QpAttr{}, libibverbs.IBV_QP_ACCESS_FLAGS))
		}, false, false},
		"request of the peer fails": {func(c *copier) { c.a.qp.failHead(libibverbs.IBV_WC_RETRY_EXC_ERR) }, true, false},
		"window is removed beside": {func(c *copier) {
			w := c.window(c.b.pd, libibverbs.IBV_MW_TYPE_1)
			bindMW(c.b.qp, w, c.b.mr, 0, 8, remoteWrite)
			require.NoError(c.t(), w.Dealloc())
		}, false, false},
	} {
		for _, taken := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", left", true: ", taken"}[taken], func(t *testing.T) {
				c := newCopier(t, copied)
				source, target := c.a.mr.memory, c.b.mr.memory
				pattern(source, 5)
				c.b.postRecv(1)
				c.a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}.remote(c.b, 0), c.a.mr.sge(0, copied))
				c.until(0)
				require.NotZero(t, c.copies.Oldest())
				if taken {
					c.take()
				}
				left := c.b.qp.responder.copy
				tt.happens(c)
				require.True(t, left.made)
				if !tt.ends {
					c.finish(0)
					require.Equal(t, []result{ok(1)}, results(c.a.send))
					require.Equal(t, source, target)
					return
				}
				is := slices.Clone(target)
				other := bytes.Repeat([]byte{0xA5}, 4096)
				for b := source; len(b) > 0; b = b[4096:] {
					copy(b, other) // the program uses the memory for something else
				}
				c.finish(0)
				if tt.target {
					require.Equal(t, is, target)
				}
				require.False(t, bytes.Contains(target, other[:64]))
				if slices.Contains(append(results(c.a.send), results(c.b.recv)...), ok(1)) {
					require.Equal(t, patternOf(copied, 5), target, "the packets were sent before")
				}
			})
		}
	}
}

// A copy that takes long causes no retransmission.
func TestCopiesTimeout(t *testing.T) {
	c := newCopier(t, copied)
	pattern(c.a.mr.memory, 5)
	c.a.post(SendSlot{ID: 2, Opcode: write}.remote(c.b, 0), c.a.mr.sge(0, copied))
	for now := time.Duration(0); now < 10*time.Second; now += 50 * time.Millisecond {
		c.until(now)
	}
	require.Zero(t, c.a.qp.retries)
	c.finish(10 * time.Second)
	require.Equal(t, []result{ok(2)}, results(c.a.send))
	require.Equal(t, c.a.mr.memory, c.b.mr.memory)
}

// Nor does one that has taken longer than the timeout when it ends.
func TestCopiesEndAfterTimeout(t *testing.T) {
	for _, retries := range []uint8{0, 7} {
		c := newCopier(t, copied)
		pattern(c.a.mr.memory, 5)
		c.a.qp.attr.RetryCnt, c.a.qp.requester.retries = retries, retries
		c.a.post(SendSlot{ID: 2, Opcode: write}.remote(c.b, 0), c.a.mr.sge(0, copied))
		c.until(0)
		c.finish(10 * time.Second)
		require.Equal(t, []result{ok(2)}, results(c.a.send))
		require.Zero(t, c.a.qp.retries)
	}
}

// What a queue pair has sent when it fails, in the same Advance, is copied
// before the program gets its memory back: a WRITE, and a message behind a copy
// that was left before.
func TestCopiesOfFailed(t *testing.T) {
	for _, behind := range []bool{false, true} {
		c := newCopier(t, copied)
		source, target := c.a.mr.memory, c.b.mr.memory
		pattern(source, 5)
		c.a.recv.ring.Max = 1 // the second message that comes overruns the queue, which fails a
		c.a.postRecv(1)
		c.a.postRecv(2)
		c.b.postRecv(9, c.b.mr.sge(copied-64, 64))
		if behind {
			c.a.postQuiet(SendSlot{ID: 7, Opcode: write}.remote(c.b, 0), c.a.mr.sge(0, 200<<10))
			c.until(0)
			require.NotZero(t, c.copies.Oldest())
		}
		c.b.post(SendSlot{ID: 1, Opcode: send})
		c.b.post(SendSlot{ID: 2, Opcode: send})
		c.Advance(0)
		inbox := c.inbox
		c.inbox = nil
		for _, p := range inbox {
			c.Receive(p)
		}
		if behind {
			c.a.post(SendSlot{ID: 8, Opcode: send}, c.a.mr.sge(copied-64, 64))
		} else {
			c.a.post(SendSlot{ID: 8, Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}.remote(c.b, 0), c.a.mr.sge(0, copied))
		}
		c.until(0)
		require.Equal(t, libibverbs.IBV_QPS_ERR, c.a.qp.attr.QpState)
		other := bytes.Repeat([]byte{0xA5}, 64)
		for b := source; len(b) > 0; b = b[64:] {
			copy(b, other) // the program uses the memory for something else
		}
		c.finish(0)
		require.False(t, bytes.Contains(target, other), "behind: %v", behind)
	}
}

// Messages of two pairs arrive whole and in order, although packets are lost
// and repeated, and copies take a random time.
func TestCopiesLost(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 2))
		c := newCopier(t, copied)
		x, y := c.end(c.node, libibverbs.IBV_QPT_RC, nil, copied), c.end(c.node, libibverbs.IBV_QPT_RC, nil, copied)
		c.join(x, y)
		x.qp.mtu, y.qp.mtu = 4096, 4096
		pairs := [][2]*end{{c.a, c.b}, {x, y}, {c.b, c.a}, {y, x}}
		for _, p := range pairs {
			p[0].qp.attr.RetryCnt, p[0].qp.requester.retries = 7, 7
		}
		const messages = 6
		for i, p := range pairs {
			half := copied / 2 * (i / 2)
			pattern(p[0].mr.memory[half:][:copied/2], seed+uint64(i))
			for n := range uint64(messages) {
				p[1].postRecv(n)
				p[0].post(SendSlot{ID: n, Opcode: libibverbs.IBV_WR_RDMA_WRITE_WITH_IMM}.remote(p[1], half), p[0].mr.sge(half, copied/2))
			}
		}
		for now := time.Duration(0); now != Never; {
			next := c.Advance(now)
			inbox := c.inbox
			c.inbox = nil
			for _, p := range inbox {
				switch {
				case random.Float64() < 0.02:
					continue
				case random.Float64() < 0.02:
					again := &wire.Packet{}
					*again = *p
					again.Payload = slices.Clone(p.Payload)
					c.Receive(again)
				}
				c.Receive(p)
			}
			if c.copies.Oldest() > 0 && random.IntN(2) > 0 {
				c.take()
			}
			if n := len(c.taken); n > 0 && random.IntN(2) > 0 {
				i := random.IntN(n)
				done := c.taken[i]
				c.taken = slices.Delete(c.taken, i, i+1)
				done.Make()
				done.Finish()
			}
			if len(inbox) == 0 && len(c.taken) == 0 && c.copies.Oldest() == 0 {
				now = next
			}
		}
		require.Empty(t, c.copies.unfinished)
		var all []result
		for n := range uint64(messages) {
			all = append(all, ok(n))
		}
		for i, p := range pairs {
			require.Equal(t, all, results(p[0].send), "seed %d, pair %d", seed, i)
			require.Equal(t, all, results(p[1].recv), "seed %d, pair %d", seed, i)
			half := copied / 2 * (i / 2)
			require.Equal(t, p[0].mr.memory[half:][:copied/2], p[1].mr.memory[half:][:copied/2])
		}
	}
}
