// SPDX-License-Identifier: Apache-2.0

package wire

// A PSN is a packet sequence number: 24 bits that wrap around. Seen from one
// number, half of all numbers are before it and the others after it.
type PSN uint32

// Add returns the number n packets after p, or before it if n is negative.
func (p PSN) Add(n int) PSN { return PSN(int64(p)+int64(n)) & mask24 }

// Diff returns the number of packets from q to p, from -1<<23 to 1<<23 - 1.
func (p PSN) Diff(q PSN) int { return int(int32(p-q)<<8) >> 8 }

// Before reports whether p is before q.
func (p PSN) Before(q PSN) bool { return p.Diff(q) < 0 }

// After reports whether p is after q.
func (p PSN) After(q PSN) bool { return p.Diff(q) > 0 }
