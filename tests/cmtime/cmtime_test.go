package cmtime

import (
	"encoding/json"
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

// What the program prints as JSON has every step; -b adds one.
func TestJSON(t *testing.T) {
	d := testdevice.Require(t)
	ours, _ := programs(t)
	for _, ip := range []string{d.IPv4.String(), d.IPv6.String()} {
		stop := serve(t, ours, "-b", ip)
		out, err := ours.command(t.Context(), "-s", ip, "-b", ip, "-p", "7477", "-c", "3", "-j").Output()
		require.NoError(t, err)
		stop()
		var results []map[string]any
		require.NoError(t, json.Unmarshal(out, &results))
		var names []string
		for _, r := range results {
			names = append(names, r["step"].(string))
			require.LessOrEqual(t, r["min_us"], r["max_us"])
			require.LessOrEqual(t, r["max_us"], r["total_ms"].(float64)*1000)
			require.Positive(t, r["min_us"])
		}
		require.Equal(t, slices.Insert(slices.Clone(steps), 1, "bind addr"), names)
	}
}

func TestNobodyListens(t *testing.T) {
	d := testdevice.Require(t)
	ours, _ := programs(t)
	out, err := ours.command(t.Context(), "-s", d.IPv4.String(), "-p", "7478").CombinedOutput()
	require.Error(t, err)
	require.Equal(t, "cmtime: connect: connection rejected: nobody listens on the port\n", string(out))
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
