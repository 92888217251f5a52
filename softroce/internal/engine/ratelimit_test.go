// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/generated/libibverbs"
)

// A queue pair stays below its limit, and close to it, without a timeout:
// also where a packet takes longer than the timeout.
func TestRateLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		kind  libibverbs.QpType
		rate  uint32 // in kilobits per second
		burst uint32
		size  int
	}{
		"fast":             {libibverbs.IBV_QPT_RC, 1e6, 0, 1 << 20},
		"slow":             {libibverbs.IBV_QPT_RC, minRate, 0, 1 << 17},
		"with long bursts": {libibverbs.IBV_QPT_RC, 8000, 1 << 18, 1 << 20},
		"unreliable":       {libibverbs.IBV_QPT_UC, 8000, 1, 1 << 19},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(tt.kind, tt.size)
			n.fillRandom(a.mr.memory)
			require.NoError(t, a.qp.LimitRate(&libibverbs.QpRateLimitAttr{RateLimit: tt.rate, MaxBurstSz: tt.burst}))
			n.runFor(time.Second) // an idle queue pair saves no more than a burst
			began := n.now
			a.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, tt.size))
			for a.send.ring.Added == 0 {
				require.True(t, n.step(), "nothing happens any more")
			}
			took := n.now - began
			n.run()
			require.Equal(t, []result{ok(1)}, results(a.send))
			require.Equal(t, a.mr.memory, b.mr.memory)
			if tt.burst == 0 {
				tt.burst = defaultBurst
			}
			least := time.Duration(tt.size-int(tt.burst)-2*4096) * 8 * time.Millisecond / time.Duration(tt.rate)
			require.Greater(t, took, least)
			require.Less(t, took, time.Duration(tt.size)*8*time.Millisecond/time.Duration(tt.rate)*5/4+time.Millisecond)
			require.Zero(t, a.qp.retries)
		})
	}
}

// A limit holds until it ends, or the queue pair is reset. Answers to reads are
// not limited.
func TestRateLimitEnds(t *testing.T) {
	const size = 1 << 20
	for name, end := range map[string]func(a *end){
		"no limit": func(a *end) { require.NoError(a.t, a.qp.LimitRate(&libibverbs.QpRateLimitAttr{})) },
		"higher":   func(a *end) { require.NoError(a.t, a.qp.LimitRate(&libibverbs.QpRateLimitAttr{RateLimit: maxRate})) },
		"error":    func(a *end) { a.modify(libibverbs.IBV_QPS_ERR) },
		"reset":    func(a *end) { a.modify(libibverbs.IBV_QPS_RESET) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, 1)
			a, b := n.pair(libibverbs.IBV_QPT_RC, size)
			require.NoError(t, a.qp.LimitRate(&libibverbs.QpRateLimitAttr{RateLimit: minRate}))
			b.post(SendSlot{ID: 1, Opcode: libibverbs.IBV_WR_RDMA_READ}.remote(a, 0), b.mr.sge(0, size))
			n.runFor(100 * time.Millisecond)
			require.Equal(t, []result{ok(1)}, results(b.send))
			a.post(SendSlot{ID: 2, Opcode: libibverbs.IBV_WR_RDMA_WRITE}.remote(b, 0), a.mr.sge(0, size))
			n.runFor(time.Second)
			require.Empty(t, results(a.send))
			end(a)
			began := n.now
			n.run()
			require.Less(t, n.now-began, time.Second)
			require.Zero(t, a.qp.limit.timer.at)
		})
	}
}

func TestRateLimitRefused(t *testing.T) {
	n := newNetwork(t, 1)
	a, _ := n.pair(libibverbs.IBV_QPT_RC, 64)
	limit := func(e *end, attr libibverbs.QpRateLimitAttr) error { return e.qp.LimitRate(&attr) }
	require.ErrorIs(t, limit(a, libibverbs.QpRateLimitAttr{RateLimit: minRate - 1}), syscall.EINVAL)
	require.ErrorIs(t, limit(a, libibverbs.QpRateLimitAttr{RateLimit: minRate, CompMask: 1}), syscall.EINVAL)
	a.limits.Pacing = false
	require.ErrorIs(t, limit(a, libibverbs.QpRateLimitAttr{RateLimit: minRate}), syscall.EOPNOTSUPP)
	require.Zero(t, a.limits.pacingCaps())
	a.limits.Pacing = true
	a.modify(libibverbs.IBV_QPS_ERR)
	require.ErrorIs(t, limit(a, libibverbs.QpRateLimitAttr{RateLimit: minRate}), syscall.EINVAL)
	d, _ := newNetwork(t, 1).datagramPair()
	require.ErrorIs(t, limit(d, libibverbs.QpRateLimitAttr{RateLimit: minRate}), syscall.EOPNOTSUPP)
	a.Remove()
	require.ErrorIs(t, limit(a, libibverbs.QpRateLimitAttr{}), syscall.EIO)
}
