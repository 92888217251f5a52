// SPDX-License-Identifier: Apache-2.0

//go:build !race

package racing

// Enabled reports whether the tests were built with -race.
const Enabled = false
