// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// Row is the result for one size. Latencies are in microseconds. They are for
// one way if the peer answers, and for the whole operation if it does not.
// Bandwidths are in MiB/s and Gb/s, and the message rate is in millions per
// second.
type Row struct {
	Bytes      int `json:"bytes"`
	Iterations int `json:"iterations"`

	Min     float64 `json:"min_us,omitempty"`
	Max     float64 `json:"max_us,omitempty"`
	Typical float64 `json:"typical_us,omitempty"` // median latency
	Mean    float64 `json:"mean_us,omitempty"`
	Stdev   float64 `json:"stdev_us,omitempty"`
	P99     float64 `json:"p99_us,omitempty"`
	P999    float64 `json:"p99_9_us,omitempty"`

	Peak        float64 `json:"peak_mib_s,omitempty"`
	Average     float64 `json:"average_mib_s,omitempty"`
	Gigabits    float64 `json:"average_gb_s,omitempty"` // the average in units of 10^9 bits
	MessageRate float64 `json:"message_rate_mps,omitempty"`

	CPU float64 `json:"cpu_us"` // processor time of this process, user and system, for each message
}

const megabyte = 1 << 20

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// latencyRow makes a row from the times at which messages were posted. Between
// two of these times, a message goes one way as often as ways says; the row has
// the latency of one way.
func latencyRow(size int, posted []time.Duration, ways int) Row {
	took := make([]float64, len(posted)-1)
	sum := 0.0
	for i := range took {
		took[i] = microseconds(posted[i+1]-posted[i]) / float64(ways)
		sum += took[i]
	}
	slices.Sort(took)
	n := len(took)
	at := func(share float64) float64 { return took[min(int(math.Ceil(float64(n)*share)), n-1)] }
	r := Row{
		Bytes: size, Iterations: len(posted), Min: took[0], Max: took[n-1], Mean: sum / float64(n),
		Typical: (took[n/2] + took[(n-1)/2]) / 2, P99: at(0.99), P999: at(0.999),
	}
	for _, t := range took {
		r.Stdev += (t - r.Mean) * (t - r.Mean)
	}
	r.Stdev = math.Sqrt(r.Stdev / float64(n))
	return r
}

// completion is the time at which all messages before n had completed.
type completion struct {
	n  int
	at time.Duration
}

// bandwidthRow makes a row from the times at which messages were posted and had
// completed.
func bandwidthRow(size int, posted []time.Duration, completed []completion) Row {
	r := receivedRow(size, len(posted), completed[len(completed)-1].at-posted[0])
	r.Peak = peak(posted, completed) * float64(size) / megabyte
	return r
}

// receivedRow makes a row for n messages that arrived in the time took. As with
// perftest, it has no peak, because a receiver knows when it has polled but not
// when messages arrived.
func receivedRow(size, n int, took time.Duration) Row {
	rate := float64(n) / max(took, 1).Seconds() // at least the resolution of the clock
	return Row{Bytes: size, Iterations: n, Average: rate * float64(size) / megabyte, MessageRate: rate / 1e6}.withGigabits()
}

// withGigabits returns the row with the average in Gb/s.
func (r Row) withGigabits() Row {
	r.Gigabits = r.Average * megabyte * 8 / 1e9
	return r
}

// plus returns the row with the bandwidth of the peer's messages added.
func (r Row) plus(theirs Row) Row {
	r.Peak += theirs.Peak
	r.Average += theirs.Average
	r.MessageRate += theirs.MessageRate
	return r.withGigabits()
}

// peak returns the highest rate, in messages per second, over all stretches
// from a post to a completion.
//
// A stretch is a line from (posted[i], i) to (c.at, c.n), and its slope is the
// rate. The steepest line to a completion touches the lower right of the convex
// hull of all posts before, so only that hull is kept and searched.
func peak(posted []time.Duration, completed []completion) (best float64) {
	point := func(i int) completion { return completion{i, posted[i]} }
	var hull []completion // from left to right, each line steeper than the one before
	for _, c := range completed {
		for i := hullEnd(hull); i < c.n; i++ {
			for len(hull) > 1 && !isSteeper(hull[len(hull)-2], point(i), hull[len(hull)-1]) {
				hull = hull[:len(hull)-1]
			}
			hull = append(hull, point(i))
		}
		k := sort.Search(len(hull)-1, func(k int) bool { return !isSteeper(hull[k], c, hull[k+1]) })
		if from := hull[k]; c.at > from.at {
			best = max(best, float64(c.n-from.n)/(c.at-from.at).Seconds())
		}
	}
	return best
}

// hullEnd returns the index of the first post that has not been added to the
// hull. The post that was added last is always the end of the hull.
func hullEnd(hull []completion) int {
	if len(hull) == 0 {
		return 0
	}
	return hull[len(hull)-1].n + 1
}

// isSteeper reports whether the line from a to b is steeper than that from a to
// c.
func isSteeper(a, b, c completion) bool {
	return float64(b.n-a.n)*float64(c.at-a.at) > float64(c.n-a.n)*float64(b.at-a.at)
}

// Head returns the line above the rows.
func (t *Test) Head() string {
	if t.Bandwidth {
		return " #bytes     #iterations    BW peak[MiB/sec]   BW average[MiB/sec]  MsgRate[Mpps]    BW average[Gb/sec]   CPU[usec]"
	}
	return " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]    CPU[usec]"
}

// Line returns a row as perftest prints it, followed by the processor time.
func (t *Test) Line(r Row) string {
	if t.Bandwidth {
		return fmt.Sprintf(" %-7d    %-10d     %-7.2f            %-7.2f              %-7.6f         %-7.2f              %-7.2f",
			r.Bytes, r.Iterations, r.Peak, r.Average, r.MessageRate, r.Gigabits, r.CPU)
	}
	return fmt.Sprintf(" %-7d %d          %-7.2f        %-7.2f      %-7.2f  \t       %-7.2f     \t%-7.2f\t\t%-7.2f \t\t%-7.2f     %-7.2f",
		r.Bytes, r.Iterations, r.Min, r.Max, r.Typical, r.Mean, r.Stdev, r.P99, r.P999, r.CPU)
}
