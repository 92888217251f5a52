// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"math"
	"sort"
)

// Metric is a value that each link has.
type Metric struct {
	Name  string // in JSON
	Title string
	Unit  string
	Floor float64 // the smallest factor by which a link must be worse to be slow
	Less  bool    // whether less is worse
	value func(*Link) float64
}

// Metrics are all metrics. The floor of the tail is high: a lost packet costs a
// timeout, which is a thousand times a latency, and what costs less varies from
// run to run.
var Metrics = []*Metric{
	{"latency", "latency", "us", 1.25, false, func(l *Link) float64 { return l.Latency }},
	{"tail", "99 % latency", "us", 10, false, func(l *Link) float64 { return l.Tail }},
	{"bandwidth", "bandwidth", "Gb/s", 1.25, true, func(l *Link) float64 { return l.Bandwidth }},
}

// Of returns a link's value. ok is false if it was not measured.
func (m *Metric) Of(l *Link) (value float64, ok bool) {
	value = m.value(l)
	return value, value > 0 && l.Error == ""
}

// Worse returns by which factor a value is worse than another. It is below 1 if
// the value is better.
func (m *Metric) Worse(value, than float64) float64 {
	if m.Less {
		return than / value
	}
	return value / than
}

// Baseline is what is normal for a metric on a rail.
//
// The spread is the median absolute deviation (MAD) of the values' logarithms
// from that of the median. Logarithms make a link that takes twice as long as
// slow as one that has half of the bandwidth. It is given as a percentage: half
// of the links are within this of the median.
type Baseline struct {
	Rail   string  `json:"rail"`
	Metric string  `json:"metric"` // latency, tail or bandwidth
	Unit   string  `json:"unit"`
	Links  int     `json:"links"` // number of links that were measured
	Median float64 `json:"median"`
	MAD    float64 `json:"mad_percent"`

	mad float64 // of the logarithms
}

// baseline returns the baseline of a metric for links of a rail. ok is false if
// there are no values.
func (m *Metric) baseline(rail string, links []*Link) (b Baseline, ok bool) {
	var values, deviations []float64
	for _, l := range links {
		if v, ok := m.Of(l); ok {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return b, false
	}
	b = Baseline{Rail: rail, Metric: m.Name, Unit: m.Unit, Links: len(values), Median: median(values)}
	for _, v := range values {
		deviations = append(deviations, math.Abs(math.Log(v/b.Median)))
	}
	b.mad = median(deviations)
	b.MAD = math.Round(math.Expm1(b.mad)*1000) / 10
	return b, true
}

// score is the modified z-score above which a value is an outlier, and scale
// makes a MAD of a standard deviation: Iglewicz and Hoaglin, How to Detect and
// Handle Outliers, 1993.
const (
	score = 3.5
	scale = 0.6745
)

// IsSlow reports whether a value is an outlier on the bad side, and worse than
// the median by the metric's floor.
func (m *Metric) IsSlow(value float64, b Baseline) bool {
	factor := m.Worse(value, b.Median)
	return factor > m.Floor && scale*math.Log(factor) > score*b.mad
}

// median returns the median of values, which it sorts.
func median(values []float64) float64 {
	sort.Float64s(values)
	n := len(values)
	return (values[n/2] + values[(n-1)/2]) / 2
}

// Number returns a value with about three digits.
func Number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
