// SPDX-License-Identifier: Apache-2.0

package wire

// PSN is a packet sequence number: 24 bits that wrap around. Half of all
// numbers are before a given number, and half are not.
type PSN uint32

// Add returns the number that is n packets after p; n may be negative.
func (p PSN) Add(n int) PSN { return PSN(int64(p)+int64(n)) & mask24 }

// Diff returns the number of packets from q to p: from -1<<23, if p is before
// q, to 1<<23 - 1.
func (p PSN) Diff(q PSN) int { return int(int32(p-q)<<8) >> 8 }

// Before reports whether p is before q.
func (p PSN) Before(q PSN) bool { return p.Diff(q) < 0 }

// After reports whether p is after q.
func (p PSN) After(q PSN) bool { return p.Diff(q) > 0 }
