// SPDX-License-Identifier: Apache-2.0

// Package protocol is the rsocket protocol of librdmacm as a state machine. It
// decides what two ends tell each other when they connect, when and where data
// may be sent, what a received message means, and when buffer space is given
// back to the sender. It does no I/O, has no clock, and takes no locks. Its
// caller passes it received messages and completed requests, and posts the
// requests that it returns.
//
// Each end has two pieces of memory to which the other writes. One is a receive
// buffer, which consists of two halves. The other is the target table with two
// entries, in which the peer announces the next half of its own receive buffer.
// Every message is an RDMA write with 32 bits of immediate data, the Word,
// which has the message's kind.
package protocol
