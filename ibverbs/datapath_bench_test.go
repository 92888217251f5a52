// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package ibverbs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/verbena-go/verbena/internal/testutil/cloops"
)

// batchSizes are the requests or completions of one call.
var batchSizes = []int{1, 4, 16, 64}

// against runs round, and then the same in C, and an empty call of C, in turn
// and in slices, of which the fastest counts: what else the machine does is in
// the others. It reports, for one call, Go's time, C's, and Go's as a multiple
// of that; for each of the n things done in a call, what Go takes longer; and
// what an empty call of C takes.
func against(b *testing.B, n int, round func() error, inC func(rounds int) time.Duration) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if err := round(); err != nil {
			b.Fatal(err)
		}
	}
	const slices, rounds = 300, 500
	best := [3]time.Duration{time.Hour, time.Hour, time.Hour}
	for range slices {
		for i, run := range []func() time.Duration{
			func() time.Duration {
				begin := time.Now()
				for range rounds {
					_ = round()
				}
				return time.Since(begin)
			},
			func() time.Duration { return inC(rounds) },
			func() time.Duration {
				begin := time.Now()
				for range rounds {
					cloops.Empty()
				}
				return time.Since(begin)
			},
		} {
			took := run()
			require.Positive(b, took)
			best[i] = min(best[i], took)
		}
	}
	inGo, c, empty := float64(best[0])/rounds, float64(best[1])/rounds, float64(best[2])/rounds
	b.ReportMetric(inGo, "Go-ns")
	b.ReportMetric(c, "C-ns")
	b.ReportMetric(inGo/c, "x-C")
	b.ReportMetric((inGo-c)/float64(n), "over-ns/each")
	b.ReportMetric(empty, "cgo-ns")
}

// sizes runs a benchmark for each size, with a device that always succeeds.
func sizes(b *testing.B, run func(b *testing.B, f *fakeDevice, mr *MR, n int)) {
	for _, n := range batchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := newFakeDevice(b)
			f.Endless()
			run(b, f, fakeMR(b, 4096, 1), n)
		})
	}
}

func BenchmarkPostSend(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		against(b, n, func() error { _, err := f.qp.PostSend(batch); return err },
			func(rounds int) time.Duration { return cloops.Post(f.qp.raw, &batch.arena.wrs[0], rounds) })
	})
}

func BenchmarkPostSendExtended(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		against(b, n, func() error { _, err := f.ex.PostSend(batch); return err },
			func(rounds int) time.Duration { return cloops.PostExtended(f.ex.ex, &batch.arena.wrs[0], rounds) })
	})
}

func BenchmarkPostInline(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		for i := range n {
			require.NoError(b, batch.WR(i).SetFlags(SendSignaled|SendInline))
		}
		against(b, n, func() error { _, err := f.qp.PostSend(batch); return err },
			func(rounds int) time.Duration { return cloops.Post(f.qp.raw, &batch.arena.wrs[0], rounds) })
	})
}

func BenchmarkFillAndPost(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		against(b, n, func() error { return fillAndPost(f.qp, batch, mr, n) },
			func(rounds int) time.Duration {
				return cloops.FillAndPost(f.qp.raw, &batch.arena.wrs[0], n, dataOf(mr), rounds)
			})
	})
}

func BenchmarkFillAndPostExtended(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		against(b, n, func() error { return fillAndPost(f.ex, batch, mr, n) },
			func(rounds int) time.Duration { return cloops.SendExtended(f.ex.ex, n, dataOf(mr), rounds) })
	})
}

func BenchmarkChangeAndPost(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		round := func() error {
			for i := range n {
				if err := batch.WR(i).SetSegments(mr.Sub(64, 32)); err != nil {
					return err
				}
			}
			_, err := f.qp.PostSend(batch)
			return err
		}
		against(b, n, round, func(rounds int) time.Duration {
			return cloops.ChangeAndPost(f.qp.raw, &batch.arena.wrs[0], n, dataOf(mr), rounds)
		})
	})
}

func BenchmarkFillAndRecv(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch, err := NewRecvBatch(n, 1)
		require.NoError(b, err)
		round := func() error {
			batch.Reset()
			for i := range n {
				if err := batch.Recv(uint64(i), mr.Sub(0, 64)); err != nil {
					return err
				}
			}
			_, err := f.qp.PostRecv(batch)
			return err
		}
		against(b, n, round, func(rounds int) time.Duration {
			return cloops.FillAndRecv(f.qp.raw, &batch.arena.wrs[0], n, dataOf(mr), rounds)
		})
	})
}

// What a program does: fill, post, poll, and look at each completion.
func BenchmarkCycle(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch, wcs := filled(b, mr, n), make([]WC, n)
		var sum uint64
		round := func() error {
			if err := fill(batch, mr, n); err != nil {
				return err
			}
			_, got, err := f.qp.PostSendAndSpin(batch, f.cq, wcs, time.Millisecond)
			if err != nil {
				return err
			}
			for i := range wcs[:got] {
				if err := wcs[i].Err(); err != nil {
					return err
				}
				sum += wcs[i].ID()
			}
			return nil
		}
		against(b, n, round, func(rounds int) time.Duration {
			return cloops.Cycle(f.qp.raw, f.cq.raw, &batch.arena.wrs[0], n, dataOf(mr), rounds)
		})
		require.NotZero(b, sum)
	})
}

func fill(batch *SendBatch, mr *MR, n int) error {
	batch.Reset()
	for i := range n {
		if err := batch.Send(uint64(i), SendSignaled, mr.Sub(0, 64)); err != nil {
			return err
		}
	}
	return nil
}

func fillAndPost(qp *QP, batch *SendBatch, mr *MR, n int) error {
	if err := fill(batch, mr, n); err != nil {
		return err
	}
	_, err := qp.PostSend(batch)
	return err
}

func dataOf(mr *MR) cloops.Data { return cloops.Data{Addr: mr.addr(), LKey: mr.LKey()} }

func BenchmarkPoll(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, _ *MR, n int) {
		wcs := make([]WC, n)
		against(b, n, func() error { _, err := f.cq.Poll(wcs); return err },
			func(rounds int) time.Duration { return cloops.Poll(f.cq.raw, n, rounds) })
	})
}

func BenchmarkPollFields(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, _ *MR, n int) {
		f.fields.queue.Fields &^= fakeFields
		f.fields.queue.Fields |= uint64(WCWithByteLen | WCWithTimestamp)
		wcs := make([]WC, n)
		against(b, n, func() error { _, err := f.fields.Poll(wcs); return err },
			func(rounds int) time.Duration { return cloops.PollExtended(f.CQ(), n, rounds) })
	})
}

func BenchmarkPostAndPoll(b *testing.B) {
	sizes(b, func(b *testing.B, f *fakeDevice, mr *MR, n int) {
		batch := filled(b, mr, n)
		wcs := make([]WC, n)
		against(b, n, func() error { _, _, err := f.qp.PostSendAndSpin(batch, f.cq, wcs, time.Millisecond); return err },
			func(rounds int) time.Duration {
				return cloops.PostAndPoll(f.qp.raw, f.cq.raw, &batch.arena.wrs[0], n, rounds)
			})
	})
}
