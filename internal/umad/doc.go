// SPDX-License-Identifier: Apache-2.0

// Package umad calls libibumad, which sends and receives the datagrams of
// InfiniBand management. It has the functions that package fabric needs.
package umad

// Size is the length of the header that stands before a datagram: struct
// ib_user_mad. Its members are at these offsets.
const (
	Status = 4  // an errno
	QPN    = 20 // big-endian, as QKey and LID
	QKey   = 24
	LID    = 28
	Size   = 64
)
