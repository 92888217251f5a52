// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package cm

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/fakeverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// echoing returns a connection over a device that completes at once whatever is
// posted.
func echoing(b testing.TB) *rdmacm.Conn {
	b.Helper()
	conn, err := rdmacm.Dial(b.Context(), address, &rdmacm.Config{SendQueue: 256, RecvQueue: 256, KeepAlive: -1})
	require.NoError(b, err)
	fakeverbs.Echo(conn.PD().Device().Raw())
	return conn
}

// BenchmarkConn does the same with a connection's methods as with a batch that
// was filled before and the queues. It reports nanoseconds of either, and what
// the first takes longer, for each request, and prints them as rows of a
// Markdown table.
func BenchmarkConn(b *testing.B) {
	conn := echoing(b)
	mr, err := conn.Alloc(4096, ibverbs.AccessLocalWrite)
	require.NoError(b, err)
	remote := ibverbs.RemoteBuffer{Addr: 4096, RKey: 1, Len: 4096}
	piece := mr.Sub(0, 64)
	ctx := context.Background()
	sends := func(n int) *ibverbs.SendBatch {
		batch, err := ibverbs.NewSendBatch(n, 1)
		require.NoError(b, err)
		for range n {
			require.NoError(b, batch.Send(1<<63, ibverbs.SendSignaled, piece))
		}
		return batch
	}
	receives := func() *ibverbs.RecvBatch {
		batch, err := ibverbs.NewRecvBatch(1, 1)
		require.NoError(b, err)
		require.NoError(b, batch.Recv(1<<63, piece))
		return batch
	}
	cq, err := conn.PD().Device().CreateCQ(ibverbs.CQConfig{CompQueue: 64})
	require.NoError(b, err)
	wcs := make([]ibverbs.WC, 64)
	raw := func(batch *ibverbs.SendBatch) func() error {
		return func() error {
			if _, err := conn.QP().PostSend(batch); err != nil {
				return err
			}
			_, err := cq.Poll(wcs)
			return err
		}
	}
	post := func(n int) func() error {
		var t rdmacm.Transfer
		batch := sends(n)
		return func() error {
			if err := conn.Post(ctx, &t, batch); err != nil {
				return err
			}
			return t.Wait(ctx)
		}
	}
	recv := receives()
	rawRecv := func() error {
		if _, err := conn.QP().PostRecv(recv); err != nil {
			return err
		}
		_, err := cq.Poll(wcs)
		return err
	}
	for _, tt := range []struct {
		name     string
		requests int
		easy     func() error
		raw      func() error
	}{
		{"Send", 1, func() error { return conn.Send(ctx, piece) }, raw(sends(1))},
		{"Write", 1, func() error { return conn.Write(ctx, remote, piece) }, raw(sends(1))},
		{"Recv", 1, func() error { _, err := conn.Recv(ctx, piece); return err }, rawRecv},
		{"Post", 1, post(1), raw(sends(1))},
		{"Post", 16, post(16), raw(sends(16))},
		{"Post", 64, post(64), raw(sends(64))},
	} {
		b.Run(fmt.Sprintf("%s/%d", tt.name, tt.requests), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := tt.easy(); err != nil {
					b.Fatal(err)
				}
			}
			// The fastest of many slices: whatever else the machine does is in
			// the others.
			const slicesOf, rounds = 200, 500
			best := []time.Duration{time.Hour, time.Hour}
			for range slicesOf {
				for i, do := range []func() error{tt.easy, tt.raw} {
					began := time.Now()
					for range rounds {
						if err := do(); err != nil {
							b.Fatal(err)
						}
					}
					best[i] = min(best[i], time.Since(began))
				}
			}
			easy, raw := float64(best[0])/rounds, float64(best[1])/rounds
			b.ReportMetric(easy, "Conn-ns")
			b.ReportMetric(raw, "raw-ns")
			b.ReportMetric((easy-raw)/float64(tt.requests), "over-ns/each")
			fmt.Printf("\n| %s | %d | %.0f ns | %.0f ns | %.1f ns |\n", tt.name, tt.requests, raw, easy, (easy-raw)/float64(tt.requests))
		})
	}
	require.NoError(b, cq.Close())
	require.NoError(b, conn.Close())
}
