// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkRsocket measures rstream: C's over rsockets, ours over TCP and ours over rsockets, in turn, two processes each. It prints the
// medians as rows of a Markdown table, and the smallest, the median and the largest ratio of a round. C's cannot run on the device in user
// space.
func BenchmarkRsocket(b *testing.B) {
	d, rounds := testdevice.Require(b), rounds(b)
	ours := func(args ...string) *exec.Cmd { return process.Command(b, "rstream", args...) }
	c := func(args ...string) *exec.Cmd { return exec.Command("rstream", args...) }
	for _, tt := range []struct {
		name      string
		size      int
		bandwidth bool
		args      string
	}{
		{"latency, spinning", 64, false, "-C 1 -I 10000"},
		{"latency, blocking", 64, false, "-C 1 -I 10000 -T b"},
		{"latency, spinning", 64 << 10, false, "-C 1 -I 2000"},
		{"bandwidth, spinning", 64, true, "-C 20000 -I 1"},
		{"bandwidth, spinning", 64 << 10, true, "-C 4000 -I 1"},
		{"bandwidth, blocking", 64 << 10, true, "-C 4000 -I 1 -T b"},
		{"bandwidth, spinning", 1 << 20, true, "-C 300 -I 1"},
	} {
		b.Run(fmt.Sprintf("%s/%d", tt.name, tt.size), func(b *testing.B) {
			args := append([]string{"-S", strconv.Itoa(tt.size)}, strings.Fields(tt.args)...)
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
				return fmt.Sprintf("%.2f %s |", median(values), unit)
			}
			fmt.Printf("\n| %s, rstream, %s | %d | %s %s %s %s %s\n",
				d.Name, tt.name, tt.size, column(cs), column(tcps), column(rsockets), ratios(rsockets, cs), ratios(rsockets, tcps))
		})
	}
}

// ratios returns the column of the smallest, the median and the largest ratio of a round.
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

// stream runs a server and a client of rstream and returns microseconds for a transfer, or Gb/s, as the client says.
func stream(b *testing.B, d testdevice.Device, command func(args ...string) *exec.Cmd, bandwidth bool, args ...string) float64 {
	b.Helper()
	port++
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
		value, err := strconv.ParseFloat(fields[map[bool]int{true: 6, false: 7}[bandwidth]], 64)
		require.NoError(b, err)
		return value
	}
}
