// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"
)

// header is the line with the names of the columns.
const header = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n"

// row describes a test, which gives one line of the table.
type row struct {
	name       string
	size       int // number of bytes in a transfer
	transfers  int // number of transfers in one direction before those in the other
	iterations int // number of repetitions of both directions
}

// sizes returns the sizes in the table. With all, these are the powers of two
// from 64 bytes to 4 MiB and the values half way between them; otherwise a few
// of them.
func sizes(all bool) []int {
	if !all {
		return []int{64, 4 << 10, 64 << 10, 1 << 20}
	}
	list := []int{64}
	for size := 128; size <= 4<<20; size *= 2 {
		list = append(list, size, size+size/2)
	}
	return list
}

// latency returns the test in which the ends take turns in sending one
// transfer.
func latency(size int) row {
	return row{name: sizeText(int64(size)) + "_lat", size: size, transfers: 1, iterations: repeat(size)}
}

// bandwidth returns the test in which the client sends all of its transfers,
// and then the server sends all of its own.
func bandwidth(size int) row {
	return row{name: sizeText(int64(size)) + "_bw", size: size, transfers: repeat(size), iterations: 1}
}

// repeat returns the number of transfers of a size in a test. It is the same as
// in C, because both ends must use the same number.
func repeat(size int) int {
	switch {
	case size >= 1<<20:
		return 100
	case size >= 1<<16:
		return 1000
	case size >= 1<<10:
		return 10_000
	}
	return 100_000
}

// line returns the line of the table for a test that took the given time.
func (r row) line(took time.Duration) string {
	each := int64(r.iterations) * int64(r.transfers)
	bytes := 2 * each * int64(r.size)
	us := float64(took.Nanoseconds()) / 1000
	return fmt.Sprintf("%-10s%-8s%-8s%-8s%-8s%8.2fs%10.2f%11.2f\n",
		r.name, sizeText(int64(r.size)), countText(r.transfers), countText(r.iterations), sizeText(bytes),
		took.Seconds(), float64(bytes)*8/(1000*us), us/float64(2*each))
}

// sizeText returns a number of bytes as text with at most one decimal, rounded
// down, such as 1.5k.
func sizeText(bytes int64) string {
	unit, letter := int64(1), ""
	switch {
	case bytes >= 1<<30:
		unit, letter = 1<<30, "g"
	case bytes >= 1<<20:
		unit, letter = 1<<20, "m"
	case bytes >= 1<<10:
		unit, letter = 1<<10, "k"
	}
	whole, tenths := bytes/unit, bytes%unit*10/unit
	if whole >= 10 || tenths == 0 {
		return fmt.Sprintf("%d%s", whole, letter)
	}
	return fmt.Sprintf("%d.%d%s", whole, tenths, letter)
}

// countText returns a number as text, rounded down to thousands, millions or
// billions.
func countText(n int) string {
	switch {
	case n >= 1_000_000_000:
		return fmt.Sprintf("%db", n/1_000_000_000)
	case n >= 1_000_000:
		return fmt.Sprintf("%dm", n/1_000_000)
	case n >= 1000:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}
