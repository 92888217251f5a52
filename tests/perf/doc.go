// SPDX-License-Identifier: Apache-2.0

// Package perf runs verbena perf against perftest's programs, and measures
// both.
package perf
