// SPDX-License-Identifier: Apache-2.0

// Package protocol is the rsocket protocol of librdmacm as a state machine. It
// decides what two ends tell each other when they connect, when and where data
// may be sent, what a received message means, and how space is given back. It
// does no I/O, has no clock, and takes no locks. Its owner passes it received
// messages and completed requests, and posts the requests that it returns.
//
// Each end exposes two pieces of memory to the other. One is a receive buffer,
// which it hands out half by half. The other is a table with two entries, in
// which the peer announces the next half of its own buffer. Every message is an
// RDMA write with 32 bits of immediate data, the word, which gives the
// message's kind.
package protocol
