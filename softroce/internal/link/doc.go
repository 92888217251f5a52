// SPDX-License-Identifier: Apache-2.0

// Package link carries frames between the processes of one machine that have a soft
// device.
//
// Each process is a node with a number, its slot. It claims the slot, and the names of
// the ports that it listens at, by listening at Unix sockets in the abstract
// namespace, which the kernel takes back when their owner ends, however it ends. Each
// has a random part, so that no other user can keep a name from this one, and counts
// only if the kernel says that it is of this user. Processes find each other if they
// share a network namespace and a user.
//
// Frames between two nodes arrive in order and once, or not at all if either
// ends. They go through rings in memory that the two share, one for each direction, made by the
// sender; a Unix socket carries the descriptors of the memory, and tells each when the other ends. Each node has a
// bell, a futex in shared memory, which the others ring when there is something for it, or room again.
//
// The way to other machines is a Socket for each address: UDP port 4791, without privileges. It knows nothing of what the datagrams carry.
package link
