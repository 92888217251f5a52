// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/cmtest"
	"github.com/verbena-go/verbena/internal/testutil/racing"
	"github.com/verbena-go/verbena/transfer"
)

// heap returns how many bytes of the heap are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // sync.Pool keeps its elements for one more
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Requests leave no memory behind.
func TestManyRequests(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	const requests, batches = 500, 100
	b, data := p.dialed.NewBatch(requests), random(64*requests)
	for i := range requests {
		require.NoError(t, b.Write(remote, uint64(64*i), data[64*i:][:64]))
	}
	var before int64
	for i := range batches {
		require.NoError(t, b.Submit(ctx))
		require.NoError(t, b.Wait(ctx))
		if i == batches/10 {
			before = heap()
		}
	}
	require.Less(t, heap()-before, int64(1<<20), "after %d requests", requests*batches)
	require.Equal(t, data, p.atB.Bytes()[:len(data)])
}

// Many regions are found, and their memory is given back.
func TestManyRegions(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	const n = 2000
	memory := random(64 * n)
	var regions []*transfer.Region
	for i := range n {
		r, err := p.b.Register(memory[64*i:][:64], transfer.RegionConfig{Name: fmt.Sprint(i), Access: transfer.ReadAccess})
		require.NoError(t, err)
		regions = append(regions, r)
	}
	into := make([]byte, len(memory))
	b := p.dialed.NewBatch(n)
	for i := range n {
		remote, err := p.dialed.Region(ctx, fmt.Sprint(i))
		require.NoError(t, err)
		require.NoError(t, b.Read(into[64*i:][:64], remote, 0))
	}
	require.NoError(t, carryOut(ctx, b, nil))
	require.Equal(t, memory, into)
	for _, r := range regions {
		require.NoError(t, r.Close())
	}
	require.Equal(t, 1, p.dialed.Stats().Regions)
}

// An engine has many peers at once.
func TestManyPeers(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	const n = 20
	for i := range n {
		peer, err := p.a.Dial(ctx, at(t, p.ln), transfer.DialConfig{})
		require.NoError(t, err)
		accepted, err := p.ln.Accept(ctx)
		require.NoError(t, err)
		remote, err := peer.Region(ctx, "memory")
		require.NoError(t, err)
		data := random(1000 + i)
		require.NoError(t, write(ctx, peer, remote, data))
		require.Equal(t, data, p.atB.Bytes()[:len(data)])
		require.NoError(t, peer.Send(ctx, data[:100]))
		message, err := accepted.Receive(ctx)
		require.NoError(t, err)
		require.Equal(t, data[:100], message)
	}
}

// A long request is split into as many work requests as there are devices, of
// which each carries one, and a short request is not split.
func TestDevicesShareRequests(t *testing.T) {
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	_, err := p.b.Alloc(1<<20, transfer.RegionConfig{Name: "long", Access: transfer.WriteAccess})
	require.NoError(t, err)
	remote, err := p.dialed.Region(ctx, "long")
	require.NoError(t, err)
	cmtest.Soon(t, "all connections are up", func() bool {
		return !slices.ContainsFunc(p.dialed.Stats().Devices, func(d transfer.DeviceStats) bool { return d.Connections == 0 })
	})
	carried := func(n int) (requests uint64, by []uint64) {
		before := p.dialed.Stats()
		b := p.dialed.NewBatch(1)
		require.NoError(t, b.Write(remote, 0, make([]byte, n)))
		require.NoError(t, b.Submit(ctx))
		require.NoError(t, b.Wait(ctx))
		for i, now := range p.dialed.Stats().Devices {
			requests += now.Slices - before.Devices[i].Slices
			by = append(by, now.Written-before.Devices[i].Written)
		}
		return requests, by
	}
	few, _ := carried(64 << 10)
	require.EqualValues(t, 1, few)
	for tries := 100; ; tries-- {
		many, by := carried(1 << 20)
		require.EqualValues(t, len(p.a.Devices()), many)
		if !slices.Contains(by, 0) {
			break
		}
		require.Positive(t, tries, "one device carries all") // as it may if the thread of the other stands still
	}
}

// A batch that is submitted again allocates nothing.
func TestBatchesAllocateNothing(t *testing.T) {
	if os.Getenv("VERBENA_HOSTILE") != "" || os.Getenv("VERBENA_CHECK") != "" {
		t.Skip("what watches the program allocates")
	}
	racing.NeedsDirectCalls(t)
	needDevice(t)
	ctx := bounded(t)
	p := newPair(t, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(t, err)
	b, data := p.dialed.NewBatch(8), random(slot)
	do := func() {
		b.Reset()
		for i := range 4 {
			require.NoError(t, b.Write(remote, uint64(i), data[:1000]))
			require.NoError(t, b.Read(data[2000:4000], remote, 0))
		}
		require.NoError(t, b.Submit(ctx))
		require.NoError(t, b.Wait(ctx))
	}
	for range 20 {
		do()
	}
	require.Zero(t, testing.AllocsPerRun(200, do))
}
