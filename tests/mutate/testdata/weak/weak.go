// SPDX-License-Identifier: Apache-2.0

// Package weak has functions whose tests notice some changes.
package weak

// Clamp returns n, or the bound that it is beyond.
func Clamp(n, low, high int) int {
	if n < low {
		return low
	}
	if n > high && low <= high {
		return high
	}
	return n
}

// Join joins words. That + is no sum, so - does not compile.
func Join(a, b string) string { return a + " " + b }

// Count counts down to 0.
func Count(n int) (steps int) {
	for n > 0 {
		n--
		steps++
	}
	return steps
}

// Unused is in no test.
func Unused(n int) int {
	n += 2
	return n - 1
}
