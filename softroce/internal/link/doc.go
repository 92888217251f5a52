// SPDX-License-Identifier: Apache-2.0

// Package link carries frames between the processes of one machine that use the
// device in user space.
//
// Each process is a node with a number, its slot. It claims the slot, and the
// names of the ports that it listens at, by listening at Unix sockets in the
// abstract namespace. The kernel releases them when the process ends, however
// it ends. Each name has a random part, so that no other user can keep this one
// from taking it. A name counts only if the kernel reports that its socket
// belongs to this user. Processes find each other if they share a network
// namespace and a user.
//
// Frames between two nodes arrive in order and once, or not at all if either
// ends. They go through rings in memory that the two share, one for each
// direction, which the sender makes. A Unix socket carries the descriptors of
// the memory, and tells each node when the other ends. Each node has a bell, a
// futex in shared memory. The others ring it when there is a frame for the
// node, or room again.
//
// A Socket is the way from one address to other machines: UDP port 4791,
// without privileges. It does not interpret the datagrams.
package link
