// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// counted is a program whose system calls and context switches perf counts.
type counted struct {
	program
	file string
}

// What perf counts.
const (
	calls    = "raw_syscalls:sys_enter"
	switches = "context-switches"
)

// count returns the program under perf.
func count(t testing.TB, p program) counted {
	t.Helper()
	c := counted{p, filepath.Join(t.TempDir(), "counts")}
	c.command = func(t testing.TB, m measurement, args ...string) *exec.Cmd {
		t.Helper()
		return underPerf(p.command(t, m, args...), c.file)
	}
	return c
}

// underPerf returns the command with perf, which writes what it has counted to
// the file.
func underPerf(cmd *exec.Cmd, file string) *exec.Cmd {
	stat := exec.Command("perf", append([]string{"stat", "-x,", "-o", file, "-e", calls + "," + switches, "--"}, cmd.Args...)...)
	stat.Env = cmd.Env
	return stat
}

// readCounts returns how many of each event there were.
func readCounts(t testing.TB, file string) map[string]float64 {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	r := csv.NewReader(f)
	r.Comment, r.FieldsPerRecord = '#', -1
	lines, err := r.ReadAll()
	require.NoError(t, err)
	all := map[string]float64{}
	for _, line := range lines {
		n, err := strconv.ParseFloat(line[0], 64)
		require.NoError(t, err, "perf cannot count %s", line)
		all[line[2]] = n
	}
	return all
}

// perMessage returns how many system calls and context switches a message takes
// the client.
func perMessage(b *testing.B, d testdevice.Device, p program, m measurement, n int, args ...string) (syscalls, switched float64) {
	b.Helper()
	var each [2]map[string]float64
	for k, n := range []int{n, 2 * n} { // what the start takes is in both
		c := count(b, p)
		run(b, d, c.program, p, m, append(slices.Clone(args), "-n", strconv.Itoa(n))...)
		each[k] = readCounts(b, c.file)
	}
	per := func(what string) float64 { return (each[1][what] - each[0][what]) / float64(n) }
	return per(calls), per(switches)
}

// BenchmarkCounts compares conversations of programs that sleep until something
// comes, in a guest whose clock counts instructions. It prints rows of a
// Markdown table: times, then the ratio to C's, the smallest, the median and
// the largest of VERBENA_PERF_ROUNDS rounds, and what a message takes of the
// client's system calls and context switches.
func BenchmarkCounts(b *testing.B) {
	d := testdevice.Require(b)
	b.Setenv("GOMAXPROCS", "4") // as a machine of today has, even if the guest has one
	ways := []struct {
		name  string
		p     program
		flags string
	}{
		{"C", theirs, "-e"},
		{"CQ.Sleep", ours, "-e -R"},
		{"CQ.Wait", ours, "-e --netpoll -R"},
		{"Conn", ours, "--conn -e"},
	}
	for _, tt := range []struct {
		measurement
		size, n int
	}{
		{measurement{"send", false}, 64, 3000},
		{measurement{"read", false}, 64, 3000},
		{measurement{"send", true}, 64, 3000},
		{measurement{"send", true}, 64 << 10, 300},
		{measurement{"read", true}, 64 << 10, 300},
	} {
		b.Run(fmt.Sprintf("%v/%d", tt.measurement, tt.size), func(b *testing.B) {
			times, ratios := make([][]float64, len(ways)), make([][]float64, len(ways))
			for b.Loop() {
				for range rounds(b) {
					for i, way := range ways {
						r := run(b, d, way.p, way.p, tt.measurement, append(strings.Fields(way.flags), "-s", strconv.Itoa(tt.size), "-n", strconv.Itoa(tt.n))...)[0]
						times[i] = append(times[i], r.Typical+r.Average) // one of which is not there
						last := len(times[i]) - 1
						ratios[i] = append(ratios[i], times[i][last]/times[0][last])
					}
				}
			}
			unit := map[bool]string{true: "MiB/s", false: "us"}[tt.bandwidth]
			for i, way := range ways {
				args := append(strings.Fields(way.flags), "-s", strconv.Itoa(tt.size))
				syscalls, switched := perMessage(b, d, way.p, tt.measurement, tt.n, args...)
				fmt.Printf("\n| %v | %d | %s | %.1f %s | %.2f, %.2f, %.2f | %.2f | %.2f |\n", tt.measurement, tt.size, way.name, median(times[i]), unit,
					slices.Min(ratios[i]), median(ratios[i]), slices.Max(ratios[i]), rounded(syscalls, 2), rounded(switched, 2))
			}
		})
	}
}

// rounded returns a count to that many digits after the point. A count that
// is the difference of two runs may be less than 0.
func rounded(count float64, digits int) float64 {
	unit := math.Pow10(digits)
	if r := math.Round(count*unit) / unit; r != 0 {
		return r
	}
	return 0 // and not -0
}
