// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkPerftest measures with perftest's programs at both ends and with
// verbena perf at both ends, in turn, VERBENA_PERF_ROUNDS times, and prints the
// medians as rows of a Markdown table.
func BenchmarkPerftest(b *testing.B) {
	d, rounds := testdevice.Require(b), rounds(b)
	for _, m := range []measurement{{"send", false}, {"write", false}, {"read", false}, {"send", true}, {"write", true}, {"read", true}} {
		for _, size := range []int{64, 4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%v/%d", m, size), func(b *testing.B) { compare(b, d, m, size, rounds) })
		}
	}
	for _, op := range []string{"send", "read"} {
		m := measurement{op, false}
		b.Run(fmt.Sprintf("%v-e/64", m), func(b *testing.B) { compare(b, d, m, 64, rounds, "-e") })
		b.Run(fmt.Sprintf("%v-netpoll/64", m), func(b *testing.B) { compare(b, d, m, 64, rounds, "-e", "--netpoll") })
	}
}

// BenchmarkConn measures with queue pairs that rdma_cm has connected and with
// the methods of connections, in turn, and prints the medians as rows of a
// Markdown table: those of queue pairs, those of connections, and the smallest,
// the median and the largest ratio of a round.
func BenchmarkConn(b *testing.B) {
	d := testdevice.Require(b)
	for _, tt := range []struct {
		measurement
		size, n int
		flags   string
	}{
		{measurement{"send", false}, 64, 5000, ""},
		{measurement{"send", false}, 64, 5000, "-e --netpoll"},
		{measurement{"read", false}, 64, 5000, ""},
		{measurement{"read", false}, 64, 5000, "-e --netpoll"},
		// A queue pair receives into the same memory again and again, and a
		// connection has memory for each receive: 32 MiB for the usual 512,
		// which no cache holds.
		{measurement{"send", true}, 64 << 10, 5000, "-r 64"},
		{measurement{"write", true}, 64 << 10, 10000, ""},
		{measurement{"write", true}, 64 << 10, 10000, "-l 16"},
		{measurement{"read", true}, 64 << 10, 10000, "-l 16"},
	} {
		b.Run(fmt.Sprintf("%v %s/%d", tt.measurement, tt.flags, tt.size), func(b *testing.B) {
			args := append(strings.Fields(tt.flags), "-s", strconv.Itoa(tt.size), "-n", strconv.Itoa(tt.n))
			var of [2][]float64
			var ratios []float64
			for b.Loop() {
				for range rounds(b) {
					for i, how := range []string{"-R", "--conn"} {
						r := run(b, d, ours, ours, tt.measurement, append(slices.Clip(args), how)...)[0]
						of[i] = append(of[i], r.Typical+r.Average) // one of which is not there
					}
					last := len(of[0]) - 1
					ratios = append(ratios, of[1][last]/of[0][last])
				}
			}
			unit := map[bool]string{true: "MiB/s", false: "us"}[tt.bandwidth]
			fmt.Printf("\n| %s, %v %s | %d | %.1f %s | %.1f %s | %.2f, %.2f, %.2f |\n", d.Name, tt.measurement, tt.flags, tt.size,
				median(of[0]), unit, median(of[1]), unit, slices.Min(ratios), median(ratios), slices.Max(ratios))
		})
	}
}

// rounds returns how often benchmarks measure.
func rounds(b *testing.B) int {
	text := os.Getenv("VERBENA_PERF_ROUNDS")
	if text == "" {
		return 5
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err)
	return n
}

// compare prints a row: microseconds typical for latency, MiB/s on average for
// bandwidth. Flags that begin with two dashes are only ours.
func compare(b *testing.B, d testdevice.Device, m measurement, size, rounds int, more ...string) {
	b.Helper()
	iterations := min(5000, max(50, 32<<20/size)) // a second or so, so that starting counts for little
	what := m.String()
	args := [2][]string{}
	for i := range args {
		args[i] = []string{"-s", strconv.Itoa(size), "-n", strconv.Itoa(iterations)}
	}
	for _, arg := range more {
		what += " " + arg
		if !strings.HasPrefix(arg, "--") {
			args[0] = append(args[0], arg)
		}
		args[1] = append(args[1], arg)
	}
	var of [2][]float64
	for b.Loop() {
		for range rounds {
			for i, p := range []program{theirs, ours} {
				r := run(b, d, p, p, m, args[i]...)[0]
				of[i] = append(of[i], r.Typical+r.Average) // one of which is not there
			}
		}
	}
	c, g := median(of[0]), median(of[1])
	unit := "us"
	if m.bandwidth {
		unit = "MiB/s"
	}
	fmt.Printf("\n| %s | %d | %.1f %s | %.1f %s | %.2f |\n", what, size, c, unit, g, unit, g/c)
}

func median(values []float64) float64 {
	return slices.Sorted(slices.Values(values))[len(values)/2]
}
