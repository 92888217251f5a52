// SPDX-License-Identifier: Apache-2.0

// Package protocol is the rsocket protocol of librdmacm as a state machine: what two ends tell each
// other when they connect, when data may be sent and where to, what a received message means, and how
// space is given back. It does no I/O, has no clock, and takes no locks. It is told what has arrived and
// completed, and says what to post.
//
// Each end exposes two pieces of memory to the other: a receive buffer, of which it gives away one half
// after the other, and a table with two entries, in which the peer says which half of its own buffer comes next.
// Every message is an RDMA write with 32 bits of immediate data, the word, that says what it is.
package protocol
