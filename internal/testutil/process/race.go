// SPDX-License-Identifier: Apache-2.0

//go:build race

package process

// race says that the test has the race detector.
const race = true
