// SPDX-License-Identifier: Apache-2.0

// Package perf runs rdmaperf against perftest's programs, and measures both.
package perf
