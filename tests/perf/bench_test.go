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
// rdmaperf at both ends, in turn, VERBENA_PERF_ROUNDS times, and prints the
// medians as rows of a Markdown table.
func BenchmarkPerftest(b *testing.B) {
	d := testdevice.Require(b)
	rounds := 5
	if text := os.Getenv("VERBENA_PERF_ROUNDS"); text != "" {
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
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
