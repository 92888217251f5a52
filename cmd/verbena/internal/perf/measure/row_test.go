// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
)

func TestLatencyRow(t *testing.T) {
	posted := make([]time.Duration, 1001)
	for i := 1; i < len(posted); i++ {
		posted[i] = posted[i-1] + time.Duration(2*i)*time.Microsecond // 1, 2, ... 1000 us one way
	}
	r := latencyRow(64, posted, 2)
	require.Equal(t, 64, r.Bytes)
	require.Equal(t, 1001, r.Iterations)
	require.InDelta(t, 1, r.Min, 1e-9)
	require.InDelta(t, 1000, r.Max, 1e-9)
	require.InDelta(t, 500.5, r.Typical, 1e-9)
	require.InDelta(t, 500.5, r.Mean, 1e-9)
	require.InDelta(t, 288.675, r.Stdev, 1e-3)
	require.InDelta(t, 991, r.P99, 1e-9)
	require.InDelta(t, 1000, r.P999, 1e-9)
	require.Equal(t, 2.0, latencyRow(2, []time.Duration{0, 2000}, 1).P999)
}

func TestBandwidthRow(t *testing.T) {
	const ms = time.Millisecond
	posted := []time.Duration{0, 0, 10 * ms, 10 * ms}
	r := bandwidthRow(megabyte, posted, []completion{{2, 10 * ms}, {4, 14 * ms}})
	require.Equal(t, 4, r.Iterations)
	require.InDelta(t, 4/0.014, r.Average, 1e-6)
	require.InDelta(t, 4/0.014/1e6, r.MessageRate, 1e-9)
	require.InDelta(t, 2/0.004, r.Peak, 1e-6)
}

// slowPeak is what peak returns, by looking at every stretch.
func slowPeak(posted []time.Duration, completed []completion) (best float64) {
	for i, from := range posted {
		for _, c := range completed {
			if c.n > i && c.at > from {
				best = max(best, float64(c.n-i)/(c.at-from).Seconds())
			}
		}
	}
	return best
}

// Runs of any shape: bursts of posts at one time, completions for one message
// or for many, and stretches without any.
func TestPeak(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var posted []time.Duration
		var completed []completion
		now, done := time.Duration(0), 0
		for n := 1 + random.IntN(40); done < n; {
			for range random.IntN(min(6, n-len(posted)+1)) {
				posted = append(posted, now)
				now += time.Duration(random.IntN(3))
			}
			now += time.Duration(random.IntN(1 + random.IntN(50)))
			if under := len(posted) - done; under > 0 {
				done += 1 + random.IntN(under)
				now++
				completed = append(completed, completion{done, now})
			}
		}
		require.InEpsilon(t, slowPeak(posted, completed), peak(posted, completed), 1e-9, "%v %v", posted, completed)
	}
}

// A completion for each of a million messages: to look at every stretch would
// take hours.
func TestPeakOfManyCompletions(t *testing.T) {
	const n = 1_000_000
	posted, completed := make([]time.Duration, n), make([]completion, n)
	for i := range n {
		posted[i] = time.Duration(i) * time.Microsecond
		completed[i] = completion{i + 1, posted[i] + 10*time.Microsecond - time.Duration(i%2)}
	}
	r := bandwidthRow(1, posted, completed)
	require.InDelta(t, 1, r.MessageRate, 1e-3)
	require.InDelta(t, 1, r.Peak*megabyte/1e6, 1e-3)
}

// What a receiver tells can be written as JSON, even if all messages were there
// when it looked first.
func TestReceivedRow(t *testing.T) {
	for _, at := range []time.Duration{0, 1, time.Second} {
		r := receivedRow(4096, 5, at)
		require.NoError(t, json.NewEncoder(io.Discard).Encode(Result{Rows: []Row{r}}))
		require.Equal(t, 5, r.Iterations)
		require.Zero(t, r.Peak)
	}
	require.InDelta(t, 5.0*4096/megabyte, receivedRow(4096, 5, time.Second).Average, 1e-9)
}

// The columns are perftest's, with more behind them.
func TestLine(t *testing.T) {
	latency, bandwidth := &Test{Op: Send, Transport: ibverbs.QPTypeRC}, &Test{Op: Write, Transport: ibverbs.QPTypeUC, Bandwidth: true}
	require.Equal(t, "RC send latency", latency.String())
	require.Equal(t, "UC write bandwidth", bandwidth.String())
	require.Equal(t, []string{"2", "1000", "1.00", "9.00", "2.00", "3.00", "0.50", "8.00", "8.50", "4.00"}, fields(
		latency.Line(Row{Bytes: 2, Iterations: 1000, Min: 1, Max: 9, Typical: 2, Mean: 3, Stdev: 0.5, P99: 8, P999: 8.5, CPU: 4})))
	require.Equal(t, []string{"65536", "5000", "2.00", "1.00", "0.000016", "0.01", "4.00"}, fields(
		bandwidth.Line(Row{Bytes: 65536, Iterations: 5000, Peak: 2, Average: 1, MessageRate: 0.000016, CPU: 4}.withGigabits())))
	many := &Test{Op: Read, Transport: ibverbs.QPTypeRC, Bandwidth: true, Both: true, QPs: 4}
	require.Equal(t, "RC read bandwidth both ways on 4 queue pairs", many.String())
	require.Equal(t, "read_bw", many.Name())
}

func TestNamed(t *testing.T) {
	for _, op := range Ops {
		for _, bandwidth := range []bool{false, true} {
			gotOp, gotBandwidth, ok := Named((&Test{Op: op, Bandwidth: bandwidth}).Name())
			require.True(t, ok)
			require.Equal(t, op, gotOp)
			require.Equal(t, bandwidth, gotBandwidth)
		}
	}
	_, _, ok := Named("send")
	require.False(t, ok)
}

// Both ends of a test in both directions show what they have done together.
func TestPlus(t *testing.T) {
	sum := Row{Bytes: 2, Iterations: 5, Average: 100, Peak: 120, MessageRate: 1, CPU: 3}.plus(Row{Average: 200, Peak: 250, MessageRate: 2})
	require.Equal(t, Row{Bytes: 2, Iterations: 5, Average: 300, Peak: 370, MessageRate: 3, CPU: 3, Gigabits: 2.5165824}, sum)
}

func fields(line string) (f []string) {
	for _, b := range bytes.Fields([]byte(line)) {
		f = append(f, string(b))
	}
	return f
}

func TestCheck(t *testing.T) {
	good := Test{Op: Send, Transport: ibverbs.QPTypeRC, Sizes: []int{2}, Iterations: 10, Depth: 16, List: 1, Moderation: 1, Receives: 1}
	require.NoError(t, good.Check())
	for text, change := range map[string]func(t *Test){
		"UD does not support write":              func(t *Test) { t.Transport, t.Op = ibverbs.QPTypeUD, Write },
		"UC does not support read":               func(t *Test) { t.Transport, t.Op = ibverbs.QPTypeUC, Read },
		"fetchadd always uses 8 bytes":           func(t *Test) { t.Op = FetchAdd },
		"cannot wait for events":                 func(t *Test) { t.Op, t.Events = Write, true },
		"must be multiples of the list length 3": func(t *Test) { t.List = 3 },
		"but only 16 are in flight":              func(t *Test) { t.Moderation = 17 },
	} {
		bad := good
		change(&bad)
		require.ErrorContains(t, bad.Check(), text)
	}
}

func TestResult(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	r := Result{Test: "RC send latency", Rows: []Row{{Bytes: 2, Iterations: 5, Min: 1, Typical: 2, CPU: 3}}}
	var b bytes.Buffer
	require.NoError(t, json.NewEncoder(&b).Encode(r))
	write(b.String())
	got, err := ReadResult(t.Context(), file)
	require.NoError(t, err)
	require.Equal(t, r, got)
	for _, text := range []string{"{", "{}", `{"rows":[]}`} {
		write(text)
		_, err := ReadResult(t.Context(), file)
		require.ErrorContains(t, err, file)
	}
}
