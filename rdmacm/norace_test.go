// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rdmacm_test

const raceDetector = false
