// SPDX-License-Identifier: Apache-2.0

package plot

import (
	"fmt"
	"math"
	"strconv"
)

// axis is a logarithmic axis from the first to the last of its ticks, drawn
// between two pixels. It has at least two ticks.
type axis struct {
	ticks    []tick
	from, to float64
}

// tick is a value that is marked on an axis. It may have a label.
type tick struct {
	value float64
	label string
}

// at returns the pixel for a value.
func (a axis) at(value float64) float64 {
	low, high := math.Log(a.ticks[0].value), math.Log(a.ticks[len(a.ticks)-1].value)
	return a.from + (a.to-a.from)*(math.Log(value)-low)/(high-low)
}

// powersOfTwo returns the ticks of an axis for sizes. At most twelve of them
// have labels.
func powersOfTwo(low, high float64) (ticks []tick) {
	first, last := int(math.Floor(math.Log2(low))), int(math.Ceil(math.Log2(high)))
	if first == last {
		first, last = max(first-1, 0), last+1
	}
	step := (last-first)/12 + 1
	for e := first; e <= last; e++ {
		t := tick{value: math.Ldexp(1, e)}
		if e%step == 0 {
			t.label = size(e)
		}
		ticks = append(ticks, t)
	}
	return ticks
}

// size returns 2 to the power of e as a text in bytes.
func size(e int) string {
	switch {
	case e >= 20:
		return fmt.Sprintf("%d Mi", 1<<(e-20))
	case e >= 10:
		return fmt.Sprintf("%d Ki", 1<<(e-10))
	}
	return fmt.Sprint(1 << e)
}

// oneTwoFive returns the ticks of an axis for measured values: one, two and
// five times the powers of ten. If there are many, only the powers have labels.
func oneTwoFive(low, high float64) (ticks []tick) {
	value := func(i int) float64 {
		decade := int(math.Floor(float64(i) / 3))
		return []float64{1, 2, 5}[i-3*decade] * math.Pow10(decade)
	}
	first := 3 * int(math.Floor(math.Log10(low)))
	for value(first+1) <= low {
		first++
	}
	last := first
	for value(last) < high {
		last++
	}
	if first == last {
		first, last = first-1, last+1
	}
	for i := first; i <= last; i++ {
		t := tick{value: value(i)}
		if last-first < 12 || i%3 == 0 {
			t.label = strconv.FormatFloat(t.value, 'f', -1, 64)
		}
		ticks = append(ticks, t)
	}
	return ticks
}
