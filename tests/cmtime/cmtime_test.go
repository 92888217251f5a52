package cmtime

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testdevice"
)

// Either client can be timed against either server.
func TestCMTime(t *testing.T) {
	d := testdevice.Require(t)
	ours, theirs := programs(t)
	for _, client := range []program{ours, theirs} {
		for _, server := range []program{ours, theirs} {
			t.Run(client.name+" client, "+server.name+" server", func(t *testing.T) {
				for step, took := range measure(t, client, server, d, 25) {
					require.GreaterOrEqual(t, took, time.Duration(0), step)
				}
			})
		}
	}
}

// number returns what an environment variable says.
func number(b *testing.B, name string, otherwise int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoError(b, err, name)
	return n
}

// BenchmarkCMTime measures Go and C in turn, VERBENA_CMTIME_ROUNDS times with
// VERBENA_CMTIME_CONNECTIONS each, and compares the medians.
func BenchmarkCMTime(b *testing.B) {
	d := testdevice.Require(b)
	ours, theirs := programs(b)
	rounds, connections := number(b, "VERBENA_CMTIME_ROUNDS", 7), number(b, "VERBENA_CMTIME_CONNECTIONS", 200)
	pairs := [][2]program{{theirs, theirs}, {ours, ours}, {ours, theirs}} // client, server
	for b.Loop() {
		var samples [3]map[string][]time.Duration
		for i := range samples {
			samples[i] = map[string][]time.Duration{}
		}
		for range rounds {
			for i, pair := range pairs {
				times := measure(b, pair[0], pair[1], d, connections)
				for _, s := range steps {
					samples[i][s] = append(samples[i][s], times[s])
				}
				samples[i]["until connected"] = append(samples[i]["until connected"], sum(times, steps[:5]))
				samples[i]["all"] = append(samples[i]["all"], sum(times, steps))
			}
		}
		fmt.Print(table(samples, connections)) // a benchmark's log is cut short
		c, g := median(samples[0]["until connected"]), median(samples[1]["until connected"])
		b.ReportMetric(float64(connections)/g.Seconds(), "conn/s")
		b.ReportMetric(c.Seconds()/g.Seconds(), "C/Go")
	}
}

func sum(times map[string]time.Duration, steps []string) (all time.Duration) {
	for _, s := range steps {
		all += times[s]
	}
	return all
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

// table has microseconds for each connection, and how fast Go is beside C.
func table(samples [3]map[string][]time.Duration, connections int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nmedian us of %d connections\n%-16s%10s%10s%12s%10s%12s\n", connections, "", "C", "Go", "rate Go/C", "Go to C", "rate Go/C")
	for _, s := range append(slices.Clone(steps), "until connected", "all") {
		us := func(i int) float64 { return float64(median(samples[i][s]).Microseconds()) / float64(connections) }
		fmt.Fprintf(&b, "%-16s%10.1f%10.1f%12.2f%10.1f%12.2f\n", s, us(0), us(1), us(0)/us(1), us(2), us(0)/us(2))
	}
	return b.String()
}
