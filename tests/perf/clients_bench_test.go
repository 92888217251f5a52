// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkClients has 200 and 1,000 clients in one process ask a server in
// another, over TCP's loopback and over the device, in turn. It prints rows of
// a Markdown table: requests a second, the smallest, the median and the largest
// ratio to TCP's in a round, the median and the 99th percentile of the time
// from a request to its answer, and what a request takes of both processes:
// processor time, system calls and context switches. The last column is the
// smallest number of requests that a client made, divided by the mean.
func BenchmarkClients(b *testing.B) {
	d := testdevice.Require(b)
	for _, n := range []int{200, 1000} {
		for i, w := range ways {
			if w.network != "tcp" {
				continue
			}
			end := i + 1
			for end < len(ways) && ways[end].protocol == w.protocol {
				end++
			}
			b.Run(fmt.Sprintf("%s/%d", w.protocol, n), func(b *testing.B) { compareWays(b, d, ways[i:end], n) })
		}
	}
}

// compareWays prints a row for each way. The first is TCP.
func compareWays(b *testing.B, d testdevice.Device, ways []way, n int) {
	b.Helper()
	const requests = 40000
	command := func(w way, times int) *exec.Cmd {
		return process.Command(b, "clients", w.network, w.protocol, d.IPv4.String(), strconv.Itoa(n), strconv.Itoa(times*requests))
	}
	got := make([][]conversing, len(ways))
	for b.Loop() {
		for range rounds(b) {
			for i, w := range ways {
				p := process.Start(b, command(w, 1))
				require.Zero(b, p.Wait(), p.Output())
				var c conversing
				require.NoError(b, json.Unmarshal([]byte(p.Stdout()), &c))
				got[i] = append(got[i], c)
			}
		}
	}
	for i, w := range ways {
		mid := func(value func(conversing) float64) float64 { return median(values(got[i], value)) }
		rate := func(c conversing) float64 { return c.Rate }
		ours, tcp := values(got[i], rate), values(got[0], rate)
		ratios := make([]float64, len(ours))
		for j := range ours {
			ratios[j] = ours[j] / tcp[j]
		}
		var counts [2]map[string]float64
		for k := range counts { // what the start takes is in both
			file := filepath.Join(b.TempDir(), "counts")
			require.Zero(b, process.Run(b, underPerf(command(w, k+1), file)).Wait())
			counts[k] = readCounts(b, file)
		}
		each := func(what string) float64 { return (counts[1][what] - counts[0][what]) / requests }
		fmt.Printf("\n| %s | %d | %s | %.0f | %.2f, %.2f, %.2f | %.0f us | %.0f us | %.1f us | %.1f | %.2f | %.2f |\n", w.protocol, n, w.network,
			mid(rate), slices.Min(ratios), median(ratios), slices.Max(ratios),
			mid(func(c conversing) float64 { return c.Median }), mid(func(c conversing) float64 { return c.P99 }),
			mid(func(c conversing) float64 { return c.CPU }), rounded(each(calls), 1), rounded(each(switches), 2),
			slices.Min(values(got[i], func(c conversing) float64 { return c.Slowest })))
	}
}

// values returns a value of each.
func values(all []conversing, value func(conversing) float64) (of []float64) {
	for _, c := range all {
		of = append(of, value(c))
	}
	return of
}
