// SPDX-License-Identifier: Apache-2.0

//go:build race

package process

// race is whether the test binary has the race detector.
const race = true
