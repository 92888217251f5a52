// Package perf runs rdmaperf against perftest's programs, and measures both.
package perf
