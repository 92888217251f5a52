// SPDX-License-Identifier: Apache-2.0

// Package summary summarizes many durations in a few numbers.
package summary

import (
	"slices"
	"time"
)

// Durations summarizes durations, in microseconds.
type Durations struct {
	Min  float64 `json:"min_us"`
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"` // percentiles
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	Max  float64 `json:"max_us"`
}

// Of summarizes durations, which it sorts. There must be at least one.
func Of(all []time.Duration) Durations {
	slices.Sort(all)
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	percentile := func(p int) float64 { return Microseconds(all[(len(all)-1)*p/100]) }
	return Durations{
		Min: percentile(0), Mean: Microseconds(sum) / float64(len(all)),
		P50: percentile(50), P90: percentile(90), P99: percentile(99), Max: percentile(100),
	}
}

// Microseconds returns d in microseconds, with fractions.
func Microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
