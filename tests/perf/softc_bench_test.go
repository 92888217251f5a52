// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// BenchmarkSoftC measures C's programs and Go's in turn, both on the device in
// user space, and prints a row for each measurement: C, Go with a queue pair,
// Go with a connection, and the least, the median and the largest ratio of a
// round, and then each one's system calls and context switches for a message,
// those of the device included.
func BenchmarkSoftC(b *testing.B) {
	if os.Getenv("VERBENA_DEVICE") != "soft" {
		b.Skip("needs VERBENA_DEVICE=soft")
	}
	d, rounds := testdevice.Require(b), rounds(b)
	softly := onSoftDevice(b)
	c := program{"C", func(t testing.TB, m measurement, args ...string) *exec.Cmd {
		return softly(t, theirs.command(t, m, args...).Args...)
	}}
	for _, tt := range []struct {
		name string
		measurement
		size, n int
		flags   []string
	}{
		{"send latency, polling", measurement{"send", false}, 64, 20000, nil},
		{"send latency, events", measurement{"send", false}, 64, 10000, []string{"-e"}},
		{"write bandwidth, polling", measurement{"write", true}, 64 << 10, 20000, nil},
	} {
		b.Run(fmt.Sprintf("%s/%d", tt.name, tt.size), func(b *testing.B) {
			args := append([]string{"-s", strconv.Itoa(tt.size), "-n", strconv.Itoa(tt.n)}, tt.flags...)
			unit := map[bool]string{true: "MiB/s", false: "us"}[tt.bandwidth]
			var cs, qps, conns []float64
			for b.Loop() {
				for range rounds {
					value := func(p program, more ...string) float64 {
						r := run(b, d, p, p, tt.measurement, append(slices.Clone(args), more...)...)[0]
						return r.Typical + r.Average // one of which is not there
					}
					cs, qps, conns = append(cs, value(c)), append(qps, value(ours)), append(conns, value(ours, "--conn"))
				}
			}
			var counts []string
			for _, way := range []struct {
				p    program
				more []string
			}{{c, nil}, {ours, nil}, {ours, []string{"--conn"}}} {
				flags := append([]string{"-s", strconv.Itoa(tt.size)}, append(slices.Clone(tt.flags), way.more...)...)
				syscalls, switched := perMessage(b, d, way.p, tt.measurement, tt.n, flags...)
				counts = append(counts, fmt.Sprintf("%.1f and %.1f", rounded(syscalls, 1), rounded(switched, 1)))
			}
			softRow(tt.name, strconv.Itoa(tt.size), unit, cs, qps, conns, counts...)
		})
	}
	b.Run("connections", func(b *testing.B) {
		var cs, gos []float64
		for b.Loop() {
			for range rounds {
				cs = append(cs, connectionRate(b, d, func(args ...string) *exec.Cmd { return softly(b, append([]string{"cmtime"}, args...)...) }))
				gos = append(gos, connectionRate(b, d, func(args ...string) *exec.Cmd { return process.Cmd(b, "cmtime", args...) }))
			}
		}
		softRow("connections, all steps", "", "a second", cs, gos, nil)
	})
}

// softRow prints a row.
func softRow(name, size, unit string, c, qp, conn []float64, counts ...string) {
	column := func(values []float64) string {
		if len(values) == 0 {
			return "|"
		}
		return fmt.Sprintf("%.1f %s |", median(values), unit)
	}
	ratio := func(values []float64) string {
		if len(values) == 0 {
			return "|"
		}
		ratios := make([]float64, len(values))
		for i, v := range values {
			ratios[i] = v / c[i]
		}
		return fmt.Sprintf("%.2f, %.2f, %.2f |", slices.Min(ratios), median(ratios), slices.Max(ratios))
	}
	fmt.Printf("\n| soft0, between two processes, %s | %s | %s %s %s %s %s %s |\n",
		name, size, column(c), column(qp), column(conn), ratio(qp), ratio(conn), strings.Join(counts, "; "))
}

// onSoftDevice returns what makes the command of a C program on the device.
func onSoftDevice(b *testing.B) func(t testing.TB, args ...string) *exec.Cmd {
	b.Helper()
	folder := b.TempDir()
	require.Zero(b, process.Run(b, process.Cmd(b, "verbena", "softroce", "libs", folder)).Wait())
	return func(t testing.TB, args ...string) *exec.Cmd {
		return process.Cmd(t, "verbena", append([]string{"softroce", "run", "-l", folder}, args...)...)
	}
}

var step = regexp.MustCompile(`(?m)^[a-z]+ ?[a-z]+ *: +([0-9.]+) `)

// connectionRate returns how many connections cmtime makes and ends in a
// second.
func connectionRate(b *testing.B, d testdevice.Device, command func(args ...string) *exec.Cmd) float64 {
	b.Helper()
	const connections = 500
	server := process.Start(b, command("-b", d.IPv4.String()))
	require.Eventually(b, func() bool {
		sockets, err := os.ReadFile("/proc/net/unix")
		return err == nil && regexp.MustCompile("/listen/[0-9]+/[0-9]+/"+regexp.QuoteMeta(d.IPv4.String())+"/").Match(sockets)
	}, patience, time.Millisecond)
	client := process.Start(b, command("-s", d.IPv4.String(), "-c", strconv.Itoa(connections)))
	require.Zero(b, client.Wait())
	server.Kill()
	return rate(b, client.Stdout(), connections)
}

// rate returns how many of so many connections cmtime has made and ended in a
// second.
func rate(b *testing.B, out string, connections int) float64 {
	b.Helper()
	milliseconds := 0.0
	for _, m := range step.FindAllStringSubmatch(out, -1) {
		total, err := strconv.ParseFloat(m[1], 64)
		require.NoError(b, err)
		milliseconds += total
	}
	require.Positive(b, milliseconds)
	return float64(connections) / milliseconds * 1000
}
