// SPDX-License-Identifier: Apache-2.0

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

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
)

// Either client can be timed against either server.
func TestCMTime(t *testing.T) {
	d := testdevice.Require(t)
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
	for _, ip := range []string{d.IPv4.String(), d.IPv6.String()} {
		stop := serve(t, ours, "-b", ip)
		client := ours.start(t, "-s", ip, "-b", ip, "-p", "7477", "-c", "3", "-j")
		require.Zero(t, client.Wait())
		stop()
		var results []map[string]any
		require.NoError(t, json.Unmarshal([]byte(client.Stdout()), &results))
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
	client := ours.start(t, "-s", d.IPv4.String(), "-p", "7478")
	require.Equal(t, 1, client.Wait())
	require.Equal(t, "cmtime: connect: connection rejected: no program listens on the port\n", client.Output())
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
		fmt.Print("\n", table(samples, connections)) // a benchmark's log is cut short
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

// table is Markdown: microseconds for each connection, with Go at both ends,
// and with Go's client and C's server, beside C at both ends.
func table(samples [3]map[string][]time.Duration, connections int) string {
	var b strings.Builder
	us := func(i int, step string) float64 {
		return float64(median(samples[i][step]).Microseconds()) / float64(connections)
	}
	for i, server := range []string{"", ", C's server"} {
		i++ // the first samples are C's alone
		for _, s := range append(slices.Clone(steps), "until connected", "all") {
			fmt.Fprintf(&b, "| cmtime, %s%s | %d | %.1f us | %.1f us | %.2f |\n", s, server, connections, us(0, s), us(i, s), us(i, s)/us(0, s))
		}
		c, g := 1e6/us(0, "until connected"), 1e6/us(i, "until connected")
		fmt.Fprintf(&b, "| cmtime, connections a second%s | %d | %.0f | %.0f | %.2f |\n", server, connections, c, g, g/c)
	}
	return b.String()
}
