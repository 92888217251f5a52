// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkRsocket measures rstream: C's over rsockets, ours over TCP and ours
// over rsockets, in turn, two processes each. It prints the medians as rows of
// a Markdown table, and the smallest, the median and the largest ratio of a
// round. C's cannot run on the device in user space.
func BenchmarkRsocket(b *testing.B) {
	d, rounds := testdevice.Require(b), rounds(b)
	ours := func(args ...string) *exec.Cmd { return process.Cmd(b, "rstream", args...) }
	c := func(args ...string) *exec.Cmd { return exec.Command("rstream", args...) }
	for _, tt := range []struct {
		name      string
		size      int
		bandwidth bool
		n         int // transfers, of which an emulated guest makes a tenth
		how       string
	}{
		{"latency, spinning", 64, false, 20000, "n"},
		{"latency, blocking", 64, false, 20000, "b"},
		{"latency, spinning", 64 << 10, false, 2000, "n"},
		{"bandwidth, spinning", 64, true, 40000, "n"},
		{"bandwidth, spinning", 64 << 10, true, 4000, "n"},
		{"bandwidth, blocking", 64 << 10, true, 4000, "b"},
		{"bandwidth, spinning", 1 << 20, true, 300, "n"},
	} {
		b.Run(fmt.Sprintf("%s/%d", tt.name, tt.size), func(b *testing.B) {
			if !testdevice.Soft() {
				tt.n /= 10
			}
			args := []string{"-S", strconv.Itoa(tt.size), "-C", "1", "-I", strconv.Itoa(tt.n)}
			if tt.bandwidth {
				args = []string{"-S", strconv.Itoa(tt.size), "-C", strconv.Itoa(tt.n), "-I", "1"}
			}
			args = append(args, "-T", tt.how)
			var cs, tcps, rsockets []float64
			for b.Loop() {
				for range rounds {
					if !testdevice.Soft() {
						cs = append(cs, stream(b, d, c, tt.bandwidth, args...))
					}
					tcps = append(tcps, stream(b, d, ours, tt.bandwidth, append(slices.Clone(args), "-T", "s")...))
					rsockets = append(rsockets, stream(b, d, ours, tt.bandwidth, args...))
				}
			}
			unit := map[bool]string{true: "Gb/s", false: "us"}[tt.bandwidth]
			column := func(values []float64) string {
				if len(values) == 0 {
					return "|"
				}
				return fmt.Sprintf("%.3g %s |", median(values), unit)
			}
			fmt.Printf("\n| %s, rstream, %s | %d | %s %s %s %s %s\n",
				d.Name, tt.name, tt.size, column(cs), column(tcps), column(rsockets), ratios(rsockets, cs), ratios(rsockets, tcps))
		})
	}
}

// BenchmarkCountsOfStreams is BenchmarkCounts for rstream with programs that
// sleep until something comes: C's, ours over TCP, and ours.
func BenchmarkCountsOfStreams(b *testing.B) {
	d := testdevice.Require(b)
	b.Setenv("GOMAXPROCS", "4") // as in BenchmarkCounts
	ours := func(args ...string) *exec.Cmd { return process.Cmd(b, "rstream", args...) }
	ways := []struct {
		name    string
		command func(args ...string) *exec.Cmd
		how     string
	}{
		{"C", func(args ...string) *exec.Cmd { return exec.Command("rstream", args...) }, "b"},
		{"TCP", ours, "s"},
		{"rsocket", ours, "b"},
	}
	if testdevice.Soft() {
		ways = ways[1:] // C's cannot run on it
	}
	for _, tt := range []struct {
		size, n   int
		bandwidth bool
	}{
		{64, 1000, false},
		{64 << 10, 100, false},
		{64, 4000, true},
		{64 << 10, 200, true},
	} {
		name := fmt.Sprintf("rstream, %s", map[bool]string{false: "latency", true: "bandwidth"}[tt.bandwidth])
		b.Run(fmt.Sprintf("%s/%d", name, tt.size), func(b *testing.B) {
			args := func(how string, n int) []string {
				transfers, iterations := "1", strconv.Itoa(n)
				if tt.bandwidth {
					transfers, iterations = iterations, transfers
				}
				return []string{"-S", strconv.Itoa(tt.size), "-C", transfers, "-I", iterations, "-T", how}
			}
			times, ratios := make([][]float64, len(ways)), make([][]float64, len(ways))
			for b.Loop() {
				for range rounds(b) {
					for i, way := range ways {
						times[i] = append(times[i], stream(b, d, way.command, tt.bandwidth, args(way.how, tt.n)...))
						last := len(times[i]) - 1
						ratios[i] = append(ratios[i], times[i][last]/times[0][last])
					}
				}
			}
			unit := map[bool]string{true: "Gb/s", false: "us"}[tt.bandwidth]
			for i, way := range ways {
				file := filepath.Join(b.TempDir(), "counts")
				var each [2]map[string]float64
				for k, n := range []int{tt.n, 2 * tt.n} { // what the start takes is in both
					stream(b, d, func(args ...string) *exec.Cmd {
						cmd := way.command(args...)
						if slices.Contains(args, "-s") { // the client
							return underPerf(cmd, file)
						}
						return cmd
					}, tt.bandwidth, args(way.how, n)...)
					each[k] = readCounts(b, file)
				}
				per := func(what string) float64 { return (each[1][what] - each[0][what]) / float64(2*tt.n) }
				fmt.Printf("\n| %s | %d | %s | %.3g %s | %.2f, %.2f, %.2f | %.2f | %.2f |\n", name, tt.size, way.name, median(times[i]), unit,
					slices.Min(ratios[i]), median(ratios[i]), slices.Max(ratios[i]), rounded(per(calls), 2), rounded(per(switches), 2))
			}
		})
	}
}

// ratios returns the column of the smallest, the median and the largest ratio
// of a round.
func ratios(values, others []float64) string {
	if len(others) == 0 {
		return "|"
	}
	all := make([]float64, len(values))
	for i, v := range values {
		all[i] = v / others[i]
	}
	return fmt.Sprintf("%.2f, %.2f, %.2f |", slices.Min(all), median(all), slices.Max(all))
}

// stream runs a server and a client of rstream and returns microseconds for a
// transfer, or Gb/s, as the client says.
func stream(b *testing.B, d testdevice.Device, command func(args ...string) *exec.Cmd, bandwidth bool, args ...string) float64 {
	b.Helper()
	port := nextPort()
	args = append(slices.Clip(args), "-p", strconv.Itoa(port))
	serving := process.Start(b, command(append(args, "-b", d.IPv4.String())...))
	for end := time.Now().Add(patience); ; time.Sleep(tick) { // until it listens
		client := process.Start(b, command(append(args, "-s", d.IPv4.String())...))
		if client.Wait() != 0 {
			require.True(b, time.Now().Before(end), client.Stderr())
			continue
		}
		require.Zero(b, serving.Wait())
		lines := strings.Split(strings.TrimSpace(client.Stdout()), "\n")
		fields := strings.Fields(lines[len(lines)-1])
		require.Len(b, fields, 8, client.Stdout())
		each, err := strconv.ParseFloat(fields[7], 64)
		require.NoError(b, err)
		if bandwidth { // its own column has two digits behind the point
			size, err := strconv.Atoi(args[slices.Index(args, "-S")+1])
			require.NoError(b, err)
			return 8 * float64(size) / each / 1000
		}
		return each
	}
}
