// SPDX-License-Identifier: Apache-2.0

package transfer_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/transfer"
)

// BenchmarkRegions measures what a region with a name costs both ends together,
// with more and more regions.
func BenchmarkRegions(b *testing.B) {
	needDevice(b)
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ctx := bounded(b)
			p := newPair(b, transfer.Config{})
			memory := make([]byte, 64*n)
			for b.Loop() {
				before, began := heap(), time.Now()
				regions := make([]*transfer.Region, n)
				for i := range regions {
					var err error
					regions[i], err = p.b.Register(memory[64*i:][:64], transfer.RegionConfig{Name: fmt.Sprint(i), Access: all})
					require.NoError(b, err)
				}
				_, err := p.dialed.Region(ctx, fmt.Sprint(n-1))
				require.NoError(b, err)
				b.ReportMetric(float64(time.Since(began).Microseconds())/float64(n), "us/region")
				b.ReportMetric(float64(heap()-before)/float64(n), "B/region")
				for _, r := range regions {
					require.NoError(b, r.Close())
				}
			}
		})
	}
}

// BenchmarkPeers measures what a peer costs both ends together, and a request
// of 64 bytes, with more and more peers.
func BenchmarkPeers(b *testing.B) {
	needDevice(b)
	for _, n := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			ctx := bounded(b)
			p := newPair(b, transfer.Config{})
			for b.Loop() {
				before, goroutines := heap(), runtime.NumGoroutine()
				peers := make([]*transfer.Peer, n)
				batches := make([]*transfer.Batch, n)
				const requests = 1000
				data := make([]byte, 64*requests)
				for i := range peers {
					var err error
					peers[i], err = p.a.Dial(ctx, at(b, p.ln), transfer.DialConfig{})
					require.NoError(b, err)
					_, err = p.ln.Accept(ctx)
					require.NoError(b, err)
				}
				b.ReportMetric(float64(heap()-before)/float64(n), "B/peer")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines/peer")
				for i, peer := range peers {
					remote, err := peer.Region(ctx, "memory")
					require.NoError(b, err)
					batches[i] = peer.NewBatch(requests)
					for j := range requests {
						require.NoError(b, batches[i].Write(remote, uint64(64*j), data[64*j:][:64]))
					}
				}
				began := time.Now()
				const rounds = 3
				for range rounds {
					for _, batch := range batches {
						require.NoError(b, batch.Submit(ctx))
					}
					for _, batch := range batches {
						require.NoError(b, batch.Wait(ctx))
					}
				}
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(n*requests*rounds), "ns/request")
				for _, peer := range peers {
					require.NoError(b, peer.Close())
				}
			}
		})
	}
}

// BenchmarkRequests measures what a request of 64 bytes costs at the start of a
// million, and at the end.
func BenchmarkRequests(b *testing.B) {
	needDevice(b)
	ctx := bounded(b)
	p := newPair(b, transfer.Config{})
	remote, err := p.dialed.Region(ctx, "memory")
	require.NoError(b, err)
	const requests, batches = 1000, 1000
	batch, data := p.dialed.NewBatch(requests), make([]byte, 64*requests)
	for i := range requests {
		require.NoError(b, batch.Write(remote, uint64(64*i), data[64*i:][:64]))
	}
	some := func(n int) float64 {
		began := time.Now()
		for range n {
			require.NoError(b, batch.Submit(ctx))
			require.NoError(b, batch.Wait(ctx))
		}
		return float64(time.Since(began).Nanoseconds()) / float64(n*requests)
	}
	for b.Loop() {
		some(1)
		before := heap()
		b.ReportMetric(some(batches/10), "ns/first")
		some(batches * 8 / 10)
		b.ReportMetric(some(batches/10), "ns/last")
		b.ReportMetric(float64(heap()-before)/(requests*batches), "B/request")
	}
}
